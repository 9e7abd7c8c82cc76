"""Callbacks of the list of runs: new runs, verdicts of visible rows, search, sort order, selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, State, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.live.components import drawn
from rankscope.dashboards.model.list_state import ListState
from rankscope.dashboards.runs.view import asked_row, compare_link, counted, list_revision, list_rows

MOST_ASKED: Final = 24
"""Maximum number of rows in one answer."""
MOST_FOLLOWED: Final = 8
"""Maximum number of live runs per answer whose verdict is kept up to date: each needs a process beside the server."""


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks of the list of runs."""

    @app.callback(
        Output("runs-grid", "rowData"),
        Output("runs-count", "children"),
        Output("run-list-revision", "data"),
        Input("run-list-poll", "n_intervals"),
        State("run-list-revision", "data"),
        prevent_initial_call=True,
    )
    def refresh_list(_ticks: int | None, seen: str | None) -> tuple[Any, ...]:
        try:
            runs = source.runs()
        except RankscopeError:
            return (no_update,) * 3  # the folder cannot be read at the moment: the page keeps its content
        revision = list_revision(runs)
        if revision == seen:
            return (no_update,) * 3
        return list_rows(source, runs), counted(runs), revision

    # The table's rowTransaction is not used: on a slow machine it resets the selection to its state of about 100 ms ago.
    @app.callback(Output("runs-answer", "data"), Input("runs-asked", "data"), prevent_initial_call=True)
    def answer(asked: Any) -> Any:
        if not isinstance(asked, dict) or not isinstance(asked.get("ids"), list):
            return no_update
        rows = asked_rows(source, [str(run_id) for run_id in asked["ids"][:MOST_ASKED]])
        return {"number": asked.get("number"), "rows": rows}

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_runs", "tell"), Input("runs-answer", "data"), prevent_initial_call=True
    )

    register_choices(app, "runs")

    @app.callback(Output("runs-compare", "children"), Input("runs-address", "search"), prevent_initial_call=True)
    def selected(search: str | None) -> Any:
        return drawn([compare_link(ListState.parse(search).picked)])

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_runs", "look"),
        Output("runs-asked", "data"),
        Input("runs-look", "n_intervals"),
        State("runs-answer", "data"),
        prevent_initial_call=True,
    )


def register_choices(app: Dash, table: str) -> None:
    """Add callbacks that keep a table and its address the same (``assets/listing.js``), and save its rows as CSV."""
    search_box, grid, address = f"{table}-q", f"{table}-grid", f"{table}-address"
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_listing", "follow"),
        Output(search_box, "value"),
        Input(address, "search"),
        State(address, "id"),
        State(search_box, "value"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_listing", "look_for"),
        Input(search_box, "value"),
        State(search_box, "id"),
        prevent_initial_call=True,
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "saveGrid"),
        Output(grid, "exportDataAsCsv"),
        Input(f"{table}-csv", "n_clicks"),
        prevent_initial_call=True,
    )


def asked_rows(source: RunSource, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of visible runs. Runs that cannot be read are left out: the next refresh of the list removes them."""
    rows = []
    followed = 0
    for run_id in run_ids:
        try:
            run = source.summary(run_id)
        except RankscopeError:
            continue
        followed += run.status == "live"
        rows.append(asked_row(source, run, follow=followed <= MOST_FOLLOWED))
    return rows
