"""Callbacks of the pages of all alerts and of lost GPU-hours, which change while they are shown."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, State, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.all_alerts import PAGE, alert_rows, counted, picked, revision_of_rows
from rankscope.dashboards.data.source import NotReadyError, RunSource
from rankscope.dashboards.live.components import drawn
from rankscope.dashboards.live.listing import register_choices
from rankscope.dashboards.lost_hours.view import lost_hours_of
from rankscope.dashboards.model.list_state import ListState
from rankscope.dashboards.model.state import PageState

ASKED_AT_ONCE: Final = 4
"""Maximum number of runs whose analysis is requested at a time."""


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks."""
    register_choices(app, "alerts")

    @app.callback(
        Output("alerts-grid", "rowData"),
        Output("alerts-count", "children"),
        Output("alerts-revision", "data"),
        Output("shown", "data", allow_duplicate=True),
        Input("alerts-poll", "n_intervals"),
        State("alerts-revision", "data"),
        prevent_initial_call=True,
    )
    def refresh(_ticks: int | None, seen: str | None) -> tuple[Any, ...]:
        try:
            found = source.all_alerts()
            revision = revision_of_rows(found.alerts, found.problems)
            if revision == seen:
                return (no_update,) * 4
            rows = alert_rows(source, found)
        except RankscopeError:
            return (no_update,) * 4  # the folder cannot be read at the moment: the page keeps its content
        return rows, counted(found), revision, {"path": PAGE.path, "version": revision}

    @app.callback(Output("alerts-picked", "children"), Input("alerts-address", "search"), prevent_initial_call=True)
    def pick(search: str | None) -> Any:
        try:
            return drawn(picked(source.all_alerts(), ListState.parse(search).picked))
        except RankscopeError:
            return no_update

    @app.callback(
        Output("shown", "data", allow_duplicate=True),
        Output("lost-hours-work", "disabled"),
        Input("lost-hours-work", "n_intervals"),
        State("address", "search"),
        State("shown", "data"),
        prevent_initial_call=True,
    )
    def work(ticks: int | None, search: str | None, shown: dict[str, str]) -> tuple[Any, ...]:
        try:
            left = lost_hours_of(source, PageState.parse(search)).not_analysed
            working = analyse_some(source, [run.run_id for run in left])
        except RankscopeError:
            return no_update, no_update  # the folder cannot be read at the moment
        return {**shown, "version": str(ticks)}, not working

    @app.callback(
        Output("lost-hours-work", "disabled", allow_duplicate=True),
        Input("lost-hours-analyse", "n_clicks"),
        prevent_initial_call=True,
    )
    def begin(clicks: int | None) -> Any:
        return False if clicks else no_update


def analyse_some(source: RunSource, run_ids: list[str]) -> bool:
    """Request the analysis of the first ``ASKED_AT_ONCE`` readable runs. Return whether any may still be pending."""
    working, asked = False, 0
    for run_id in run_ids:
        try:
            source.brief(run_id)
        except NotReadyError:
            working = True
        except RankscopeError:
            continue  # the run's row in the list shows the error
        asked += 1
        if asked >= ASKED_AT_ONCE:
            return True
    return working
