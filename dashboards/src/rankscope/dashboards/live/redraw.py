"""Callbacks that draw figures, parts and tables of a page, again when the run, the address or the scheme changes."""

from __future__ import annotations

import logging
from typing import Any, Final

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, html, no_update
from flask import request

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.live.components import drawn, identity, part, part_or_why
from rankscope.dashboards.live.grid import column_def, grid_style
from rankscope.dashboards.live.pages import OUR_FAULT, Pages, is_settled, stale_note, verdict_kind
from rankscope.dashboards.model.columns import known_columns
from rankscope.dashboards.model.page import Part, Table
from rankscope.dashboards.model.run_head import run_head
from rankscope.dashboards.words.units import time_zone

ZONE_COOKIE: Final = "rankscope-zone"
"""Cookie in which assets/early.js puts the time zone of the browser."""

AS_IT_WAS: Final = "The run cannot be read at the moment; what is shown is as it was before."

_LOG = logging.getLogger(__name__)


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks."""
    _follow(app, pages)
    _fill_tables(app, pages)
    each: Any = MATCH
    every: Any = ALL

    @app.callback(
        Output(identity("figure", each), "figure"),
        Output(identity("figure", each), "style"),
        Output(identity("says", each), "children"),
        Output(identity("figure-again", each), "disabled"),
        Input("shown", "data"),
        Input("address", "search"),
        Input("scheme", "data"),
        Input(identity("figure-again", each), "n_intervals"),
        State(identity("figure", each), "id"),
    )
    def draw_figure(shown: Any, search: Any, scheme: Any, _again: Any, which: dict[str, str]) -> tuple[Any, ...]:
        with time_zone(request.cookies.get(ZONE_COOKIE)):
            found = pages.figure(_path(shown), search, which["name"], palette(scheme))
        if found is None:
            return (no_update,) * 4
        drawn, ready = found
        # When the window is resized or printed, Plotly takes the height of the place, not of the figure.
        return drawn.figure, {"height": f"{drawn.figure.layout.height}px"}, drawn.says, ready

    @app.callback(
        Output(identity("part", each), "children"),
        Input("shown", "data"),
        Input("address", "search"),
        Input({"type": "part-again", "name": each, "of": every}, "n_intervals"),
        State(identity("part", each), "id"),
        prevent_initial_call=True,  # the page is delivered with it
    )
    def write_part(shown: Any, search: Any, again: list[int | None], which: dict[str, str]) -> Any:
        if isinstance(ctx.triggered_id, dict) and not any(again):
            return no_update  # the polling timer was only just created
        name = which["name"]

        def make() -> Any:
            block = pages.block(_path(shown), search, Part, name)
            return no_update if block is None else part(block)

        try:
            return part_or_why(name, make)
        except Exception:  # noqa: BLE001  other texts must still be shown; the log has the traceback
            _LOG.exception("part %s", name)
            return html.P(OUR_FAULT, className="reason", role="alert")


def _fill_tables(app: Dash, pages: Pages) -> None:
    """Add the callback that fills tables. Their columns change with the unit of their rows."""
    each: Any = MATCH

    @app.callback(
        Output(identity("grid", each), "rowData"),
        Output(identity("grid", each), "columnDefs"),
        Output(identity("grid", each), "style"),
        Input("shown", "data"),
        Input("address", "search"),
        State(identity("grid", each), "id"),
        State(identity("grid", each), "columnDefs"),
        prevent_initial_call=True,
    )
    def fill_table(shown: Any, search: Any, which: dict[str, str], before: list[dict[str, Any]] | None) -> tuple[Any, ...]:
        try:
            table = pages.block(_path(shown), search, Table, which["name"])
            rows = None if table is None else table.rows()
        except RankscopeError:
            return (no_update,) * 3  # another part of the page shows the error
        if table is None or rows is None:
            return (no_update,) * 3
        columns = [column_def(column) for column in known_columns(table.columns, rows)]
        if [column["field"] for column in columns] == [column.get("field") for column in before or []]:
            return rows, no_update, no_update  # sorting and widths stay as they are
        return rows, columns, grid_style(rows)


def _follow(app: Dash, pages: Pages) -> None:
    """Add the callback that looks for changes of a run. Figures are drawn and sent only after a change."""

    @app.callback(
        Output("shown", "data"),
        Output("run-head", "children"),
        Output("poll", "disabled"),
        Output("run-away", "children"),
        Input("poll", "n_intervals"),
        State("shown", "data"),
        State("run-away", "children"),
        prevent_initial_call=True,
    )
    def follow(_ticks: int | None, before: dict[str, str] | None, away: str | None) -> tuple[Any, Any, Any, Any]:
        try:
            found = None if before is None else pages.run_at(before["path"])
            if found is None:
                return (no_update,) * 4
            run, view = found
            now, note = pages.version(run, view), stale_note(run)
        except NotReadyError:
            return (no_update,) * 4  # its data are being computed: the page keeps its content and polls again
        except RankscopeError as error:
            # The run is being moved or written: the page keeps its content and polls again.
            return no_update, no_update, no_update, f"{AS_IT_WAS} {error}"
        said = no_update if note == (away or "") else note
        if now == before:
            return no_update, no_update, no_update, said
        return now, drawn(run_head(run.summary, verdict_kind(run))), is_settled(run), said


def _path(shown: Any) -> Any:
    return shown.get("path") if isinstance(shown, dict) else None
