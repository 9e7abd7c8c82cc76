"""Content of a report: all views of a run in order, as HTML and figures for one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

import plotly.io.json  # type: ignore[import-untyped]
from dash import html
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.callbacks.drawing import instead
from rankscope.dashboards.callbacks.saving import csv_of
from rankscope.dashboards.charts.frame import GRAPH_CONFIG
from rankscope.dashboards.charts.palette import PALETTES, Palette
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.model.drawn import Drawn, Table
from rankscope.dashboards.model.state import PageState, run_of
from rankscope.dashboards.pages.run_page import about
from rankscope.dashboards.report.schemes import differences
from rankscope.dashboards.report.static_html import Props, StaticHtml, attribute
from rankscope.dashboards.report.static_table import MOST_ROWS, columns_of, data_of, table_html
from rankscope.dashboards.views.registry import VIEWS, view_of
from rankscope.dashboards.views.view import View

MOST_CSV_ROWS: Final = 5_000
"""Maximum rows of a figure's CSV in the file. The page has all of them."""

OUR_FAULT: Final = "This could not be drawn: an error in rankscope, not in the run."


@dataclass(slots=True)
class Contents:
    """Content of a report: figures by name in the format of page.js, and faults, which are unexpected errors."""

    run: RunData
    state: PageState
    tell: Callable[[str], None]
    """Progress callback; gets the name of the item being drawn."""
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _drawn: dict[str, Drawn] = field(default_factory=dict)
    _identifiers: set[str] = field(default_factory=set)

    def html(self) -> str:
        """Return the HTML of all views of the registry."""
        return "".join(map(self._view, VIEWS))

    def _view(self, view: View) -> str:
        self.tell(f"drawing {view.label}")
        before, here = frozenset(self._identifiers), anchor_of(view)

        def identifier(name: str) -> str:
            """Return an id that is unique in the report: one used by an earlier view is prefixed with this view's name."""
            self._identifiers.add(name)
            return f"{here}-{name}" if name in before else name

        static = StaticHtml(
            figure=lambda name, props: self._figure(view, name, props),
            says=lambda name: self._draw(view, name).says,
            buttons=lambda name: self._buttons(view, name),
            table=self._table,
            anchor=self._anchor,
            identifier=identifier,
        )
        inside = static.html([*self._layout(view), about(view)])
        head = f'<h2 id="{here}-title">{escape(view.label)}</h2>'
        return f'<section class="report-view" id="{here}" aria-labelledby="{here}-title">\n{head}\n{inside}\n</section>\n'

    def _layout(self, view: View) -> list[Component]:
        try:
            return view.layout(self.run, self.state)
        except RankscopeError as error:
            return [html.P(str(error), className="report-note")]
        except Exception as error:  # noqa: BLE001  other views must still be in the report; the command reports the fault
            self._fault(view.label, error)
            return [html.P(OUR_FAULT, className="report-note")]

    def _draw(self, view: View, name: str) -> Drawn:
        """Draw a figure once per scheme. The dark one is stored as its differences from the light one."""
        if name not in self._drawn:
            self._drawn[name] = drawn = self._in(view, name, PALETTES["light"])
            dark = self._in(view, name, PALETTES["dark"])
            light = _plain(drawn)
            rows = drawn.table.rows[:MOST_CSV_ROWS]
            self.figures[name] = {
                "light": light,
                "dark": differences(light, _plain(dark)),
                "csv": csv_of(Table(drawn.table.columns, rows)) if drawn.table.columns else None,
            }
        return self._drawn[name]

    def _in(self, view: View, name: str, colors: Palette) -> Drawn:
        try:
            return view.figures[name](self.run, self.state, colors)
        except RankscopeError as error:
            return instead(str(error), colors)
        except Exception as error:  # noqa: BLE001  same reason as above
            self._fault(f"{view.label}, figure {name}", error)
            return instead(OUR_FAULT, colors)

    def _fault(self, where: str, error: Exception) -> None:
        if not any(fault.startswith(f"{where}: ") for fault in self.faults):
            self.faults.append(f"{where}: {type(error).__name__}: {error}")

    def _figure(self, view: View, name: str, props: Props) -> str:
        if name not in view.figures:
            return ""
        drawn = self._draw(view, name)
        self.figures[name]["config"] = props.get("config") or GRAPH_CONFIG
        height = drawn.figure.layout.height or 450  # Plotly's default
        return f'<div class="plot" data-figure="{escape(name)}" style="min-height:{int(height)}px"></div>'

    def _buttons(self, view: View, name: str) -> str:
        if name not in view.figures:
            return ""
        rows = len(self._draw(view, name).table.rows)
        kinds = ["PNG", "SVG", *(["CSV"] if self.figures[name]["csv"] is not None else [])]
        return "".join(
            _save_button(kind, name, f"the first {MOST_CSV_ROWS:,} of {rows:,} rows" if rows > MOST_CSV_ROWS else None)
            if kind == "CSV"
            else _save_button(kind, name)
            for kind in kinds
        )

    def _table(self, name: str, props: Props) -> str:
        """Return a table of at most ``MOST_ROWS`` rows, with a note if rows are cut off."""
        columns, rows = columns_of(props.get("columnDefs") or []), props.get("rowData") or []
        if not rows:
            return '<p class="help">No rows.</p>'
        shown = rows[:MOST_ROWS]
        self.figures[name] = {"csv": csv_of(data_of(columns, shown))}
        rest = (
            f'<p class="help">The first {MOST_ROWS:,} of {len(rows):,} rows. All of them: rankscope dashboard.</p>'
            if len(rows) > MOST_ROWS
            else ""
        )
        label = escape(name.replace("-", " "))
        return (
            f'<div class="rows" role="region" tabindex="0" aria-label="Table: {label}">{table_html(columns, shown)}</div>{rest}'
            f'<div class="saves">{_save_button("CSV", name)}</div>'
        )

    def _anchor(self, href: str) -> str | None:
        """Return the anchor of the view that ``href`` leads to, without the link's selection; ``None`` outside of this run."""
        if href.startswith("#"):
            return href[1:] or None
        found = run_of(href.partition("?")[0].partition("#")[0])
        if found is None or found[0] != self.run.summary.run_id or (view := view_of(found[1])) is None:
            return None
        return anchor_of(view)


def anchor_of(view: View) -> str:
    """Return the anchor at which a view begins."""
    return f"view-{view.slug or 'overview'}"


def _plain(drawn: Drawn) -> dict[str, Any]:
    """Return the figure as JSON for Plotly.js, with arrays as base64."""
    plain: dict[str, Any] = json.loads(plotly.io.json.to_json_plotly(drawn.figure))
    return plain


def _save_button(kind: str, name: str, title: str | None = None) -> str:
    label = f"Save as {kind}: {name.replace('-', ' ')}"
    return (
        f'<button type="button" class="save" data-save="{kind.lower()}" data-figure="{escape(name)}"'
        f"{attribute('aria-label', label)}{attribute('title', title)}>{kind}</button>"
    )
