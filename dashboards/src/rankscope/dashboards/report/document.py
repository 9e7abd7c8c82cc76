"""Report of a run: the views of its pages in one HTML file that opens from a disk and makes no requests.

``report.html`` writes the blocks of the views; its content security policy allows only the file's own scripts.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

import jinja2
import msgspec
import plotly.io.json  # type: ignore[import-untyped]
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.frame import GRAPH_CONFIG, drawn_note
from rankscope.dashboards.charts.palette import PALETTES, Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import GOING_ON
from rankscope.dashboards.model import page as model
from rankscope.dashboards.model.columns import Column
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData, csv_of
from rankscope.dashboards.model.line import code_pieces, pieces
from rankscope.dashboards.model.page import Block
from rankscope.dashboards.model.run_head import about, run_head
from rankscope.dashboards.model.state import PageState, run_of
from rankscope.dashboards.model.view import View
from rankscope.dashboards.registry import VIEWS, view_of
from rankscope.dashboards.words import wording

MOST_ROWS: Final = 2_000
"""Maximum rows of a table in the file. The page has all of them."""
MOST_CSV_ROWS: Final = 5_000
"""Maximum rows of a figure's CSV in the file. The page has all of them."""
INTERNAL_ERROR: Final = "This could not be drawn: an error in rankscope, not in the run."
LEFT_OUT: Final = (model.Choice, model.Entry, model.Request, model.Button, model.RedrawMark, model.SearchTable)
"""Blocks that need a server."""

_WORDS: Final = {"rank": "rank", "metric": "metric", "steps": "steps", "rows": "one row per"}
"""Selectable fields for which the command has an option, to their name in the report."""

_Path = tuple[str | int, ...]
Change = tuple[_Path, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Report as a file, and its faults (unexpected drawing errors), one line each."""

    file: bytes
    faults: list[str]


def report(run: RunData, state: PageState, *, made_unix_ns: int, on_progress: Callable[[str], None]) -> Report:
    """Return a report of all views of ``run`` with ``state`` selected. The same run and time produce the same bytes.

    ``on_progress``: progress callback. Raises ``RankscopeError`` if the run cannot be analysed.
    """
    analysis = run.analysis
    contents = _Contents(run, state, on_progress)
    made_by = f"rankscope {version('rankscope')}"
    selected = "; ".join(f"{word} {text}" for name, word in _WORDS.items() if (text := _chosen(state, name)) is not None)
    script, plotly_script = _text("report/page.js"), get_plotlyjs()
    template = _environment().get_template("report.html")
    page = template.render(
        title=f"{run.summary.name} · rankscope",
        file=f"rankscope-{run.summary.run_id}",
        generator=made_by,
        policy=content_security_policy(script, plotly_script),
        icon=base64.b64encode(_text("assets/icons/rankscope.svg").encode()).decode(),
        style=_text("assets/style.css") + _text("report/page.css"),
        script=script,
        head=run_head(run.summary, analysis.verdict.kind),
        facts=[
            f"Made {wording.utc_time(made_unix_ns)} by {made_by} from the run's records. Nothing here is loaded from elsewhere.",
            _as_of(run),
            f"Coverage {wording.percent(analysis.source.coverage)}: ranks × steps with evidence over those expected.",
            *([f"Selected: {selected}."] if selected else []),
            "To choose other ranks, steps and metrics, and to follow links into them: rankscope dashboard.",
        ],
        views=VIEWS,
        figures=lambda: packed(msgspec.json.encode(contents.figures)),
        plotly=_packed_plotly(),
        **contents.functions(),
    )
    return Report(page.encode(), contents.faults)


@dataclass(slots=True)
class _Contents:
    """Content of a report: figures by name in the format of page.js, and faults."""

    run: RunData
    state: PageState
    on_progress: Callable[[str], None]
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _view: str = ""
    _anchor: str = ""
    _identifiers: set[str] = field(default_factory=set)
    _before: frozenset[str] = frozenset()
    """Identifiers of earlier views."""

    def functions(self) -> dict[str, Any]:
        """Return the functions of the template."""
        return {
            "anchor_at": self.anchor,
            "anchor_of": anchor_of,
            "begin": self.begin,
            "cell_text": cell_text,
            "figure": self.figure,
            "holds_blocks": lambda item: isinstance(item, (list, tuple)) and any(isinstance(element, Block) for element in item),
            "id_of": self.identifier,
            "kind_of": lambda element: type(element).__name__,
            "leave_out": leave_out,
            "part": lambda block: self._made(block.make, f"{self._view}, part {block.name}"),
            "pieces": pieces,
            "code_pieces": code_pieces,
            "table": self.table,
        }

    def begin(self, view: View) -> list[Block]:
        """Begin a view; return its blocks."""
        self.on_progress(f"drawing {view.label}")
        self._view, self._anchor, self._before = view.label, anchor_of(view), frozenset(self._identifiers)
        return [*self._made(lambda: view.blocks(self.run, self.state), view.label), about(view)]

    def _made(self, make: Callable[[], Sequence[Block]], where: str) -> Sequence[Block]:
        try:
            return make()
        except RankscopeError as error:
            return [model.Text(str(error), "report-note")]
        except Exception as error:  # noqa: BLE001  other views must still be in the report; the command reports the fault
            self._fault(where, error)
            return [model.Text(INTERNAL_ERROR, "report-note")]

    def figure(self, block: model.FigureBlock) -> dict[str, Any]:
        """Draw a figure once per scheme. The dark one is stored as its differences from the light one."""
        drawn, dark = self._drawn(block, PALETTES["light"]), self._drawn(block, PALETTES["dark"])
        light, data = _plain(drawn), drawn.table
        saved = csv_of(FigureData(data.columns, data.rows[:MOST_CSV_ROWS])) if data.columns else None
        changes = differences(light, _plain(dark))
        self.figures[block.name] = {"light": light, "dark": changes, "csv": saved, "config": GRAPH_CONFIG}
        count = len(data.rows)
        cut = f"the first {MOST_CSV_ROWS:,} of {count:,} rows" if count > MOST_CSV_ROWS else None
        height = int(drawn.figure.layout.height or 450)  # Plotly's default
        return {"height": height, "says": drawn.sentence, "saved": saved is not None, "cut": cut}

    def _drawn(self, block: model.FigureBlock, colors: Palette) -> DrawnFigure:
        try:
            return block.draw(colors)
        except RankscopeError as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001  same reason as above
            self._fault(f"{self._view}, figure {block.name}", error)
            text = INTERNAL_ERROR
        return drawn_note(text, colors)

    def _fault(self, where: str, error: Exception) -> None:
        if not any(fault.startswith(f"{where}: ") for fault in self.faults):
            self.faults.append(f"{where}: {type(error).__name__}: {error}")

    def table(self, block: model.Table) -> tuple[list[dict[str, Any]], int]:
        """Return at most ``MOST_ROWS`` rows of a table, and the number of all."""
        try:
            rows = block.rows()
        except RankscopeError:
            rows = []  # another block shows the error
        shown, columns = rows[:MOST_ROWS], block.columns
        data = FigureData(
            tuple(column.name for column in columns), [tuple(row.get(column.field) for column in columns) for row in shown]
        )
        self.figures[block.name] = {"csv": csv_of(data)}
        return shown, len(rows)

    def anchor(self, href: str) -> str | None:
        """Return the anchor of the view that ``href`` leads to, without the link's selection; ``None`` outside of this run."""
        target = run_of(href.partition("?")[0].partition("#")[0])
        if target is None or target[0] != self.run.summary.run_id or (view := view_of(target[1])) is None:
            return None
        return anchor_of(view)

    def identifier(self, name: str | None) -> str | None:
        """Return an id that is unique in the report: one used by an earlier view is prefixed with this view's anchor."""
        if name is None:
            return None
        self._identifiers.add(name)
        return f"{self._anchor}-{name}" if name in self._before else name


def leave_out(block: Block) -> str:
    """Return nothing for a block that needs a server. Raises ``TypeError`` for one that the template does not know."""
    if not isinstance(block, LEFT_OUT):
        raise TypeError(f"report.html does not know {type(block).__name__}")
    return ""


def cell_text(column: Column, row: Mapping[str, Any]) -> str:
    """Return a cell's text as on the page; an unknown value is a dash."""
    value = row.get(column.field)
    if value is None:
        return "-"
    if column.digits is None or not isinstance(value, (int, float)):
        return str(value)
    unit = f" {row.get(column.unit_field)}" if column.unit_field else ""
    return f"{value:,.{column.digits}f}{unit}"


def anchor_of(view: View) -> str:
    """Return the anchor at which a view begins."""
    return f"view-{view.slug or 'overview'}"


def metrics_offered(run: RunData) -> list[str]:
    """Return the metrics that the pages offer; empty if there is no such choice."""
    for view in VIEWS:
        for block in model.walk(view.blocks(run, PageState())):
            if isinstance(block, model.Choice) and block.field == "metric":
                return [option["value"] for option in block.options]
    return []


def content_security_policy(*scripts: str) -> str:
    """Return a policy that allows only these scripts to run and nothing to be loaded.

    Inline styles are allowed because Plotly sets them, and ``data:`` and ``blob:`` images because it saves figures by them.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts)
    rules = ("style-src 'unsafe-inline'", "img-src data: blob:", "base-uri 'none'", "form-action 'none'")
    return "; ".join(("default-src 'none'", f"script-src {hashes}", *rules))


def packed(data: bytes) -> str:
    """Return ``data`` as gzip in base64, for embedding in HTML. It has no timestamp, so the output is reproducible."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


@cache
def _packed_plotly() -> str:
    return packed(get_plotlyjs().encode())


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(lambda name: _text(f"report/{name}"))
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def _text(name: str) -> str:
    return (files("rankscope.dashboards") / name).read_text("utf-8")


def _plain(drawn: DrawnFigure) -> dict[str, Any]:
    """Return the figure as JSON for Plotly.js, with arrays as base64."""
    plain: dict[str, Any] = json.loads(plotly.io.json.to_json_plotly(drawn.figure))
    return plain


def _chosen(state: PageState, name: str) -> str | None:
    """Return a field as in the address; ``None`` if it has its default."""
    return None if getattr(state, name) == getattr(PageState(), name) else state.text(name)


def _as_of(run: RunData) -> str:
    last = wording.utc_time(run.summary.last_write_unix_ns)
    if run.summary.status in GOING_ON:
        return f"The run had not ended: everything is as of {last}, when it was last written to."
    return f"The run was last written to {last}."


def differences(before: Any, after: Any, at: _Path = ()) -> list[Change]:
    """Return the paths at which ``after`` (JSON) differs from ``before``, with its values. The empty path is the root.

    So large arrays of a figure in two colour schemes are stored once.
    """
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return [change for key in before for change in differences(before[key], after[key], (*at, key))]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [change for index, (was, now) in enumerate(pairs) for change in differences(was, now, (*at, index))]
    return [] if type(before) is type(after) and before == after else [(at, after)]
