"""Callbacks of the page of all alerts: refresh, search, sort order, selection."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.all_alerts import alert_notes, alert_rows, counted, picked, revision_of_rows
from rankscope.dashboards.callbacks.listing import picked_ids, register_choices
from rankscope.dashboards.data.source import RunSource


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks of the page of all alerts."""
    register_choices(app, "alerts", "alerts-address", "/alerts")

    @app.callback(
        Output("alerts-grid", "rowData"),
        Output("alerts-count", "children"),
        Output("alerts-notes", "children"),
        Output("alerts-empty", "hidden"),
        Output("alerts-list", "hidden"),
        Output("alerts-revision", "data"),
        Output("many-shown", "data", allow_duplicate=True),
        Input("alerts-poll", "n_intervals"),
        State("alerts-revision", "data"),
        prevent_initial_call=True,
    )
    def refresh(ticks: int | None, seen: str | None) -> tuple[Any, ...]:
        try:
            found = source.all_alerts()
            revision = revision_of_rows(found.alerts, found.problems)
            if revision == seen:
                return (no_update,) * 7
            rows = alert_rows(source, found)
        except RankscopeError:
            return (no_update,) * 7  # the folder cannot be read at the moment: the page keeps its content
        there = bool(found.alerts)
        return rows, counted(found), alert_notes(found), there, not there, revision, {"search": "", "ticks": ticks}

    @app.callback(Output("alerts-picked", "children"), Input("alerts-grid", "selectedRows"), prevent_initial_call=True)
    def pick(rows: Any) -> Any:
        try:
            return picked(source.all_alerts(), picked_ids(rows))
        except RankscopeError:
            return no_update
