"""Callbacks that draw figures, parts and tables of a page again, and that report what has changed.

A page is delivered with its figures, parts and tables.
assets/page.js decides which of them are drawn again: after a change of the version all, after one of the address those that
read a changed field, of the scheme the figures, and those that are being computed until they are ready. For that it changes
the ``data-draw`` of their elements.
"""

from __future__ import annotations

import logging
from typing import Any

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, html, no_update
from flask import request

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.live.components import figure_properties, identity, part, part_or_why
from rankscope.dashboards.live.grid import column_def, grid_style
from rankscope.dashboards.live.pages import INTERNAL_ERROR, Pages
from rankscope.dashboards.live.routing import ZONE_COOKIE
from rankscope.dashboards.model.columns import known_columns
from rankscope.dashboards.model.page import Part, SearchTable, Table
from rankscope.dashboards.words.units import time_zone

_LOG = logging.getLogger(__name__)


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks."""
    _report_changes(app, pages)
    _fill_tables(app, pages)
    each: Any = MATCH

    @app.callback(
        Output(identity("figure", each), "figure"),
        Output(identity("figure", each), "style"),
        Output(identity("says", each), "children"),
        Output(identity("says", each), "data-waits"),
        Input(identity("says", each), "data-draw"),
        State("shown", "data"),
        State("address", "search"),
        State("scheme", "data"),
        State(identity("figure", each), "id"),
        prevent_initial_call=True,
    )
    def draw_figure(_draw: Any, shown: Any, search: Any, scheme: Any, element_id: dict[str, str]) -> tuple[Any, ...]:
        with time_zone(request.cookies.get(ZONE_COOKIE)):
            figure = pages.figure(_path(shown), search, element_id["name"], palette(scheme))
        if figure is None:
            return (no_update,) * 4
        picture, caption = figure_properties(*figure)
        return picture["figure"], picture["style"], caption["children"], caption["data-waits"]

    @app.callback(
        Output(identity("part", each), "children"),
        Input(identity("part", each), "data-draw"),
        State("shown", "data"),
        State("address", "search"),
        State(identity("part", each), "id"),
        prevent_initial_call=True,
    )
    def write_part(_draw: Any, shown: Any, search: Any, element_id: dict[str, str]) -> Any:
        name = element_id["name"]

        def make() -> Any:
            block = pages.block(_path(shown), search, Part, name)
            return no_update if block is None else part(block)

        try:
            return part_or_why(name, make)
        except Exception:  # noqa: BLE001  other texts must still be shown; the log has the traceback
            _LOG.exception("part %s", name)
            return html.P(INTERNAL_ERROR, className="reason", role="alert")


def _fill_tables(app: Dash, pages: Pages) -> None:
    """Add the callback that fills tables. Their columns change with the unit of their rows."""
    each: Any = MATCH

    @app.callback(
        Output(identity("grid", each), "rowData"),
        Output(identity("grid", each), "columnDefs"),
        Output(identity("grid", each), "style"),
        Input(identity("table", each), "data-draw"),
        State("shown", "data"),
        State("address", "search"),
        State(identity("grid", each), "id"),
        State(identity("grid", each), "columnDefs"),
        prevent_initial_call=True,
    )
    def fill_table(
        _draw: Any, shown: Any, search: Any, element_id: dict[str, str], before: list[dict[str, Any]] | None
    ) -> tuple[Any, ...]:
        try:
            table = pages.block(_path(shown), search, Table, element_id["name"])
            rows = None if table is None else table.rows()
        except RankscopeError:
            return (no_update,) * 3  # another part of the page shows the error
        if table is None or rows is None:
            return (no_update,) * 3
        columns = [column_def(column) for column in known_columns(table.columns, rows)]
        if isinstance(table, SearchTable) or [column["field"] for column in columns] == [
            column.get("field") for column in before or []
        ]:
            return rows, no_update, no_update  # sorting and widths stay as they are
        return rows, columns, grid_style(rows)


def _report_changes(app: Dash, pages: Pages) -> None:
    """Add the callbacks of the tab's poll: page.js asks, the server answers, page.js distributes the answer."""

    def clientside(name: str, *arguments: Any) -> None:
        app.clientside_callback(ClientsideFunction("rankscope_page", name), *arguments, prevent_initial_call=True)  # type: ignore[no-untyped-call]

    clientside("tick", Output("asked", "data"), Input("poll", "n_intervals"), State("shown", "data"), State("answer", "data"))
    clientside("distribute", Input("answer", "data"), State("shown", "data"))
    clientside("isShown", Input("shown", "data"))
    clientside("isAt", Input("address", "search"))
    clientside("isIn", Input("scheme", "data"))

    @app.callback(Output("answer", "data"), Input("asked", "data"), prevent_initial_call=True)
    def answer(asked_state: Any) -> Any:
        if not isinstance(asked_state, dict):
            return no_update
        rows = asked_state.get("rows")
        ids = [str(row) for row in rows] if isinstance(rows, list) else []
        about = {"number": asked_state.get("number"), "path": asked_state.get("path")}
        changed = pages.changes(
            asked_state.get("path"),
            asked_state.get("search"),
            redraw=bool(asked_state.get("whole")),
            rows=ids,
            work=bool(asked_state.get("work")),
        )
        return {**about, **changed}


def _path(shown: Any) -> Any:
    return shown.get("path") if isinstance(shown, dict) else None
