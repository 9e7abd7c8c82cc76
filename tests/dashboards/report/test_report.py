"""``rankscope report``: the pages of a run as one file."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import dash_ag_grid as dag  # type: ignore[import-untyped]
import dash_mantine_components as dmc  # type: ignore[import-untyped]
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from dash import dcc, html
from dash.development.base_component import Component
from hypothesis import given
from hypothesis import strategies as st

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import Drawn, Table
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.pages.live import figure, identity
from rankscope.dashboards.report import contents, document
from rankscope.dashboards.report.contents import MOST_CSV_ROWS
from rankscope.dashboards.report.document import Report, report
from rankscope.dashboards.report.schemes import differences
from rankscope.dashboards.report.static_html import LIVE_ONLY, TAGS, StaticHtml, parts_of
from rankscope.dashboards.report.static_table import MOST_ROWS, cell_text, columns_of, table_html
from rankscope.dashboards.store.cache import Store
from rankscope.dashboards.store.making import MadeHere
from rankscope.dashboards.views.registry import VIEWS
from rankscope.dashboards.views.view import Help, View

MADE_NS = 1_795_000_000_000_000_000
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"


class Parsed(HTMLParser):
    """Tags and text of the file, as a browser parses them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._begins: list[tuple[str, int]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._begins.append((tag, len(self.text)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def texts(self, *tags: str) -> list[str]:
        """Return the text from each of these tags to the next one."""
        begins = [at for name, at in self._begins if name in tags]
        return [self.text[at:end].strip() for at, end in zip(begins, [*begins[1:], len(self.text)], strict=True)]

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]


def made(source: Any, state: PageState | None = None) -> Report:
    """Return a report of the run ``run-1`` of ``source``."""
    return report(RunData(source, source.summary("run-1")), state or PageState(), made_unix_ns=MADE_NS, tell=lambda _: None)


@pytest.fixture(scope="module")
def kept() -> dict[str, Report]:
    """Cache of the fixture ``plain``."""
    return {}


@pytest.fixture
def plain(kept: dict[str, Report], memory_runs: Any) -> Report:
    """Report of the unchanged straggler run, made once."""
    if not kept:
        kept["plain"] = made(memory_runs)
    return kept["plain"]


def unpacked(page: str, name: str) -> Any:
    """Return a decompressed part of the file."""
    found = re.search(f'id="{name}">([^<]*)<', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def one_view(monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    """Replace the registry by one with only this view."""
    for module in (contents, document):
        monkeypatch.setattr(module, "VIEWS", (view,))


def view_with(children: list[Component], **makers: Any) -> View:
    return View(slug="made-up", label="Made up", help=Help("a", "b", "c"), layout=lambda _run, _state: children, **makers)


# Components as HTML


@given(text=st.text(), title=st.text())
def test_whatever_a_text_holds_it_stays_a_text(text: str, title: str) -> None:
    # given arbitrary texts in every place that takes a text
    tree = html.Div([html.P(text, title=title), text], id="a", className=title, **aria(label=title))
    # when it is written
    found = Parsed(StaticHtml().html(tree))
    # then no text has become a tag, and all texts are unchanged
    assert [tag for tag, _ in found.tags] == ["div", "p"]
    newlines = text.replace("\r\n", "\n").replace("\r", "\n")
    assert found.text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "") == (newlines * 2).replace("\0", "")
    assert set(found.tags[0][1]) | set(found.tags[1][1]) <= {"id", "class", "title", "aria-label"}


def test_only_attributes_known_to_be_harmless_are_written() -> None:
    tree = html.Div(
        style={"width": "38%", "backgroundColor": "var(--line)", "backgroundImage": "url(http://x)", "--fill": "a;b"},
        hidden=True,
        tabIndex=0,
        contentEditable="true",
        **cast("Any", {"data-secret": "x", "aria-label": 'say "a"'}),
    )
    assert StaticHtml().html(tree) == (
        '<div aria-label="say &quot;a&quot;" hidden style="width:38%;background-color:var(--line)" tabindex="0"></div>'
    )


def test_what_only_a_server_can_do_is_left_out_and_the_rest_is_kept() -> None:
    tree = html.Section(
        [
            dmc.Group([dmc.Select(data=["a"], label="Metric"), html.B("kept")]),  # the container may go, its content must stay
            dmc.CopyButton("Copy", value="x"),
            html.Button("Capture"),
            html.Div("ask again", className=f"card {LIVE_ONLY}"),
            dcc.Store(id="s", data={"a": 1}),
            html.Script("alert(1)"),
            html.Iframe(src="http://x"),
            html.Details([html.Summary("More"), None, 7], open=True),
        ]
    )
    assert StaticHtml().html(tree) == "<section><b>kept</b><details open><summary>More</summary>7</details></section>"


def test_links_lead_within_the_file_or_are_texts() -> None:
    static = StaticHtml(anchor=lambda address: "view-ranks" if address.startswith("/run/run-1/ranks") else None)
    assert static.html(dcc.Link("Ranks", href="/run/run-1/ranks?rank=2")) == '<a href="#view-ranks">Ranks</a>'
    for address in ("/run/other", "http://elsewhere", "javascript:alert(1)", "//elsewhere", "data:text/html,x"):
        assert static.html(html.A(["to ", html.B("it")], href=address, className="c")) == '<span class="c">to <b>it</b></span>'


# Tables


def test_a_table_shows_numbers_as_the_page_does_and_what_is_not_known_as_a_dash() -> None:
    milliseconds = {"field": "ms", "headerName": "ms", "valueFormatter": {"function": "d3.format(',.2f')(params.value)"}}
    columns = columns_of(
        [
            {"field": "name", "headerName": HOSTILE},
            {"headerName": "Time", "children": [milliseconds]},
            {"field": "secret", "hide": True},
        ]
    )  # fmt: skip
    rows: list[dict[str, Any]] = [{"name": HOSTILE, "ms": 1234.567}, {"name": None, "ms": None}, {"name": "b", "ms": 0}]
    found = Parsed(table_html(columns, rows))
    assert [tag for tag, _ in found.tags if tag not in {"tr", "td", "th", "table", "thead", "tbody"}] == ["button", "button"]
    assert found.texts("th", "td") == [HOSTILE, "Time ms", HOSTILE, "1,234.57", "-", "-", "b", "0.00"]


@pytest.mark.parametrize("formatter", ["d3.format('x<')(v)", "alert(1)", "d3.format(',.9999f')(v)"])
def test_a_format_that_is_not_understood_leaves_the_number_as_it_is(formatter: str) -> None:
    (column,) = columns_of([{"field": "a", "valueFormatter": {"function": formatter}}])
    assert cell_text(1.5, column.format) == "1.5"


def test_what_is_cut_off_of_a_table_is_said(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a table with more rows than the limit of a file, and cells that a spreadsheet would read as formulas
    rows = [{"name": "=HYPERLINK(1)", "value": -number} for number in range(MOST_ROWS + 5)]
    columns = [{"field": "name", "headerName": "Name"}, {"field": "value", "headerName": "Value"}]
    one_view(monkeypatch, view_with([dag.AgGrid(id=identity("grid", "long"), rowData=rows, columnDefs=columns)]))
    # when
    page = made(memory_runs).file.decode()
    # then
    assert page.count("<td") == 2 * MOST_ROWS
    assert f"The first {MOST_ROWS:,} of {MOST_ROWS + 5:,} rows" in page
    saved = list(csv.reader(io.StringIO(json.loads(unpacked(page, "figures"))["long"]["csv"])))
    assert saved[:3] == [["Name", "Value"], ["'=HYPERLINK(1)", "0"], ["'=HYPERLINK(1)", "-1"]]


# Two colour schemes


def changed(one: Any, changes: list[tuple[tuple[str | int, ...], Any]]) -> Any:
    """Apply changes to a figure as page.js does."""
    copy = json.loads(json.dumps(one))
    for path, value in changes:
        if not path:
            copy = value
            continue
        at = copy
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    return copy


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner),
    max_leaves=12,
)


@given(one=_json, other=_json)
def test_the_dark_figure_is_the_light_one_with_its_changes(one: Any, other: Any) -> None:
    assert changed(one, differences(one, other)) == other
    assert differences(one, one) == []


def test_only_colours_are_kept_for_the_dark_scheme(plain: Report) -> None:
    figures = json.loads(unpacked(plain.file.decode(), "figures"))
    for name in ("step-heatmap", "imposed-bars", "breakdown-bars"):
        paths = [".".join(map(str, path)) for path, _ in figures[name]["dark"]]
        assert paths
        assert [path for path in paths if "color" not in path.lower()] == []


# The file


def test_it_has_every_view_with_its_words_figures_and_help(plain: Report, memory_runs: Any) -> None:
    found = Parsed(plain.file.decode())
    assert plain.faults == []
    assert "Rank 2 on host node-1 makes the other 3 ranks wait" in found.text
    assert "100%" in found.text
    for view in VIEWS:
        assert f"About {view.label}" in found.text
        assert view.help.formula in found.text
    placed: set[str] = set()
    for view in VIEWS:
        with suppress(RankscopeError):  # this run has no what-if
            placed |= set(_graphs(view.layout(RunData(memory_runs, memory_runs.summary("run-1")), PageState())))
    assert {"step-heatmap", "breakdown-bars", "imposed-bars"} <= placed
    assert {attributes["data-figure"] for _, attributes in found.tags if attributes.get("class") == "plot"} == placed
    # the captions of figures are present without scripts
    assert "Rank 2 made the others wait most" in found.text


def _graphs(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for child in node:
            yield from _graphs(child)
    elif isinstance(node, Component):
        _, _, props = parts_of(node)
        if isinstance(node, dcc.Graph):
            yield props["id"]["name"]
        yield from _graphs(props.get("children"))


def test_identifiers_are_unique_and_every_link_arrives(plain: Report) -> None:
    found = Parsed(plain.file.decode())
    identifiers = found.values("id")
    assert len(set(identifiers)) == len(identifiers)
    targets = [href for tag, attributes in found.tags if tag == "a" and (href := attributes.get("href")) is not None]
    assert len(targets) > len(VIEWS)
    assert {target.removeprefix("#") for target in targets} <= set(identifiers)
    assert {name for value in found.values("aria-labelledby") for name in value.split()} <= set(identifiers)


def test_views_may_have_the_same_identifiers(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    same = view_with([html.Section(html.H2("x", id="t"), id="s", **aria(labelledby="t"))])
    for module in (contents, document):
        monkeypatch.setattr(module, "VIEWS", (same, replace(same, slug="other")))
    found = Parsed(made(memory_runs).file.decode())
    assert [attributes for tag, attributes in found.tags if tag == "section" and str(attributes.get("id")).endswith("s")] == [
        {"id": "s", "aria-labelledby": "t"},
        {"id": "view-other-s", "aria-labelledby": "view-other-t"},
    ]


def test_only_its_own_scripts_may_run_and_nothing_may_be_loaded(plain: Report) -> None:
    page = plain.file.decode()
    found = Parsed(page)
    policies = [
        attributes["content"] for _, attributes in found.tags if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(policies) == len(scripts) == 1
    hashes = [_hash(scripts[0]), _hash(unpacked(page, "plotly"))]
    assert policies[0] == (
        f"default-src 'none'; script-src '{hashes[0]}' '{hashes[1]}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert [
        tag for tag, attributes in found.tags if "src" in attributes or any(name.startswith("on") for name in attributes)
    ] == []
    around = {"html", "head", "meta", "title", "link", "style", "script", "body", "noscript", "a", "button"}
    assert {tag for tag, _ in found.tags} <= TAGS | around


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def test_hostile_names_are_inert(memory_runs: Any, analysis: Any) -> None:
    import msgspec

    # given a run whose name, host and sentence are HTML
    ranks = [msgspec.structs.replace(rank, host=HOSTILE) for rank in analysis.ranks]
    verdict = msgspec.structs.replace(analysis.verdict, summary=HOSTILE)
    memory_runs.analyses["run-1"] = msgspec.structs.replace(analysis, ranks=ranks, verdict=verdict)
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], name=HOSTILE, path=HOSTILE)
    # then it is plain text everywhere
    found = Parsed(made(memory_runs).file.decode())
    assert "img" not in {tag for tag, _ in found.tags}
    assert found.text.count(HOSTILE) >= 6


def test_the_same_run_makes_the_same_bytes_but_for_the_time(plain: Report, memory_runs: Any) -> None:
    run = RunData(memory_runs, memory_runs.summary("run-1"))
    later = report(run, PageState(), made_unix_ns=MADE_NS + 1_000_000_000, tell=lambda _: None).file
    assert later != plain.file
    assert later.replace(b"11:06:41 UTC", b"11:06:40 UTC") == plain.file


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("live", "The run had not ended: everything is as of 2026-11-18 11:06:40 UTC"),
        ("silent", "The run had not ended: everything is as of 2026-11-18 11:06:40 UTC"),
        ("finished", "The run was last written to 2026-11-18 11:06:40 UTC."),
    ],
)
def test_it_says_of_what_state_of_the_run_it_is(
    memory_runs: Any, monkeypatch: pytest.MonkeyPatch, status: Any, says: str
) -> None:
    one_view(monkeypatch, view_with([]))
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status=status, last_write_unix_ns=MADE_NS)
    assert says in Parsed(made(memory_runs).file.decode()).text


def test_simulated_is_said_and_so_is_what_is_selected(plain: Report, memory_runs: Any) -> None:
    before = Parsed(plain.file.decode()).text
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], simulated=True)
    text = Parsed(made(memory_runs, PageState(rank=1, steps=(10, 20), metric="wall_us")).file.decode()).text
    assert "Selected: rank 1; metric wall_us; steps 10-20." in text
    assert "SIMULATED GPUS" in text
    assert "SIMULATED GPUS" not in before
    assert "Selected:" not in before


def test_a_figure_that_cannot_be_drawn_costs_only_itself(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Drawn:
        raise RankscopeError("no window was captured: rankscope capture asks for one")

    def broken(*_: Any) -> Drawn:
        raise ZeroDivisionError("by zero")

    def fine(*_: Any) -> Drawn:
        return Drawn(go.Figure(), Table(("a",), [(row,) for row in range(MOST_CSV_ROWS + 1)]), "All is well")

    makers = {"one": missing, "two": broken, "three": fine}
    one_view(monkeypatch, view_with([figure(name, name) for name in makers], figures=makers))
    done = made(memory_runs)
    text = Parsed(done.file.decode()).text
    # missing data is explained in its place, and is no fault
    assert "no window was captured: rankscope capture asks for one" in text
    assert "This could not be drawn: an error in rankscope" in text
    assert "All is well" in text
    assert done.faults == ["Made up, figure two: ZeroDivisionError: by zero"]
    # and truncated tables are marked as such
    assert f'title="the first {MOST_CSV_ROWS:,} of {MOST_CSV_ROWS + 1:,} rows"' in done.file.decode()


def test_a_view_that_cannot_be_laid_out_costs_only_itself(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[Component]:
        raise KeyError("x")

    one_view(monkeypatch, replace(view_with([]), layout=broken))
    done = made(memory_runs)
    assert "an error in rankscope" in Parsed(done.file.decode()).text
    assert done.faults == ["Made up: KeyError: 'x'"]


def test_a_run_that_goes_on_is_looked_at_once(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    # given a live run that has been read once
    making = MadeHere(Store(tmp_path / "store"), once=True)
    run = write_run(tmp_path / "run", finished=False)
    first = making.live(run, "run-1", "a")
    # when the run grows, the report's state stays the same
    assert making.live(run, "run-1", "b") == making.finished(run, "run-1", "c") == first
