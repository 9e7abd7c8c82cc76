"""Callbacks that draw figures, parts and tables of a page from what is at its address and the colour scheme."""

from __future__ import annotations

import logging
from typing import Any, Final

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, html, no_update
from flask import request

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.live.components import identity, part, part_or_why
from rankscope.dashboards.live.pages import OUR_FAULT, Pages
from rankscope.dashboards.model.page import Part, Table
from rankscope.dashboards.words.units import time_zone

ZONE_COOKIE: Final = "rankscope-zone"
"""Cookie in which assets/early.js puts the time zone of the browser."""

_LOG = logging.getLogger(__name__)


def register(app: Dash, pages: Pages) -> None:
    """Add the callbacks."""
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

    @app.callback(
        Output(identity("grid", each), "rowData"),
        Input("shown", "data"),
        Input("address", "search"),
        State(identity("grid", each), "id"),
        prevent_initial_call=True,
    )
    def fill_table(shown: Any, search: Any, which: dict[str, str]) -> Any:
        try:
            table = pages.block(_path(shown), search, Table, which["name"])
            return no_update if table is None else table.rows()
        except RankscopeError:
            return no_update  # another part of the page shows the error


def _path(shown: Any) -> Any:
    return shown.get("path") if isinstance(shown, dict) else None
