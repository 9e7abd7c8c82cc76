"""Callbacks of the list of runs: new runs, verdicts of visible rows, search, sort order, selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, Patch, State, no_update
from dash.exceptions import PreventUpdate

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.memo import Memo, adaptive
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
    listed = Memo(1)

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
            runs = listed.get("", "", source.runs, lifetime_s=adaptive)
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

    register_choices(app, "runs", "/")

    @app.callback(Output("runs-compare", "children"), Input("runs-grid", "selectedRows"), prevent_initial_call=True)
    def selected(rows: Any) -> Any:
        return drawn([compare_link(picked_ids(rows))])

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_runs", "look"),
        Output("runs-asked", "data"),
        Input("runs-look", "n_intervals"),
        State("runs-answer", "data"),
        prevent_initial_call=True,
    )


def register_choices(app: Dash, table: str, page: str) -> None:
    """Add callbacks that synchronize a table's search, sort order and selection with the address, and save its rows as CSV."""
    names = ("q", "grid", "search", "agreed", "address")
    search_box, grid, wanted_search, agreed_search, address = (f"{table}-{name}" for name in names)

    @app.callback(
        Output(wanted_search, "data"),
        Output(search_box, "value"),
        Output(grid, "dashGridOptions"),
        Output(grid, "columnState"),
        Output(grid, "selectedRows"),
        Output(agreed_search, "data"),
        Input(search_box, "value"),
        Input(grid, "columnState"),
        Input(grid, "selectedRows"),
        Input(address, "search"),
        State(address, "pathname"),
        State(agreed_search, "data"),
        State(grid, "dashGridOptions"),
        prevent_initial_call=True,
    )
    def select(  # noqa: PLR0917  # Dash passes one argument per input
        q: Any, columns: Any, rows: Any, search: str | None, path: str | None, agreed: str | None, has: Any
    ) -> tuple[Any, ...]:
        if path not in (None, page):
            raise PreventUpdate  # the user is leaving: this is the address of the next page
        now = ListState.parse(search)
        picked = picked_ids(rows)
        # The table reports ids in its own order. A mere reordering is not a new selection: it would add a history entry.
        same = rows is None or set(picked) == set(now.picked)
        shown = replace(sorted_as(columns, now), picked=now.picked if same else picked)
        # The agreed address decides between navigation and a choice: the triggered inputs cannot, because the table's events
        # may overtake the address's. All choices are applied at once: a second may be made while the first is under way.
        moved = ListState.parse(agreed) != now
        wanted = now if moved else replace(shown, q=str(q or ""))
        options = Patch()
        options["quickFilterText"] = wanted.q
        searched = isinstance(has, dict) and has.get("quickFilterText") == wanted.q
        return (
            no_update if wanted == now else [page, wanted.search],
            no_update if wanted.q == q else wanted.q,
            no_update if searched else options,
            no_update if wanted == shown or not columns else [_column(column, wanted) for column in columns],
            no_update if wanted.picked == shown.picked else {"ids": wanted.picked},
            wanted.search if moved else no_update,
        )

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "search"),
        Output(address, "search"),
        Output(agreed_search, "data", allow_duplicate=True),
        Input(wanted_search, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope", "saveGrid"),
        Output(grid, "exportDataAsCsv"),
        Input(f"{table}-csv", "n_clicks"),
        prevent_initial_call=True,
    )


def picked_ids(rows: object) -> tuple[str, ...]:
    """Return the ids of the selected rows, from either form of ``selectedRows``: a list of rows or ``{"ids": [...]}``."""
    if isinstance(rows, dict):
        return tuple(map(str, rows.get("ids") or ()))
    return tuple(str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row) if isinstance(rows, list) else ()


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


def sorted_as(columns: Any, now: ListState) -> ListState:
    """Return ``now`` with the table's sort order, or unchanged while the table has not reported its columns."""
    if not isinstance(columns, list):
        return now
    order = next(((one["colId"], one["sort"]) for one in columns if isinstance(one, dict) and one.get("sort")), None)
    sort, descending = (None, False) if order is None else (str(order[0]), order[1] == "desc")
    return replace(now, sort=sort, descending=descending)


def _column(column: dict[str, Any], state: ListState) -> dict[str, Any]:
    order = "desc" if state.descending else "asc"
    return {**column, "sort": order if column.get("colId") == state.sort else None, "sortIndex": None}
