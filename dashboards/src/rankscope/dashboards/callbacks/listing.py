"""The list of runs: new runs, verdicts of those in view, search, order, selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import ClientsideFunction, Dash, Input, Output, Patch, State, no_update
from dash.exceptions import PreventUpdate

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.lately import Lately
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.many_state import ListState
from rankscope.dashboards.pages.run_rows import asked_row
from rankscope.dashboards.pages.runs import compare_link, counted, list_revision, list_rows

MOST_ASKED: Final = 24
"""Rows that are told of in one answer."""
MOST_FOLLOWED: Final = 8
"""Live runs among them whose verdict is kept up to date: each takes a process beside the server."""


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks of the list."""
    lately = Lately(source.runs)

    @app.callback(
        Output("runs-grid", "rowData"),
        Output("runs-count", "children"),
        Output("runs-empty", "hidden"),
        Output("runs-list", "hidden"),
        Output("run-list-revision", "data"),
        Input("run-list-poll", "n_intervals"),
        State("run-list-revision", "data"),
        prevent_initial_call=True,
    )
    def refresh_list(_ticks: int | None, seen: str | None) -> tuple[Any, ...]:
        try:
            runs = lately.get()
        except RankscopeError:
            return (no_update,) * 5  # the folder is away for the moment; what is on the page stays
        revision = list_revision(runs)
        if revision == seen:
            return (no_update,) * 5
        return list_rows(source, runs), counted(runs), bool(runs), not runs, revision

    # Not the table's rowTransaction: it sets the selection back to what it was some 100 ms ago on a slow machine.
    @app.callback(Output("runs-answer", "data"), Input("runs-asked", "data"), prevent_initial_call=True)
    def answer(asked: Any) -> Any:
        if not isinstance(asked, dict) or not isinstance(asked.get("ids"), list):
            return no_update
        rows = asked_rows(source, [str(run_id) for run_id in asked["ids"][:MOST_ASKED]])
        return {"number": asked.get("number"), "rows": rows}

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_runs", "tell"), Input("runs-answer", "data"), prevent_initial_call=True
    )

    register_choices(app, "runs", "list-address", "/")

    @app.callback(Output("runs-compare", "children"), Input("runs-grid", "selectedRows"), prevent_initial_call=True)
    def selected(rows: Any) -> Any:
        return compare_link(picked_ids(rows))

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("rankscope_runs", "look"),
        Output("runs-asked", "data"),
        Input("runs-look", "n_intervals"),
        State("runs-answer", "data"),
        prevent_initial_call=True,
    )


def register_choices(app: Dash, table: str, address: str, page: str) -> None:
    """Search, order and selection of a table follow the address, and it follows them; all rows can be saved."""
    search_box, grid, wanted_search, agreed_search = (f"{table}-{name}" for name in ("q", "grid", "search", "agreed"))

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
    def select(  # noqa: PLR0917  # as Dash hands them over
        q: Any, columns: Any, rows: Any, search: str | None, path: str | None, agreed: str | None, has: Any
    ) -> tuple[Any, ...]:
        if path not in (None, page):
            raise PreventUpdate  # somebody is leaving: this is the address of where they go
        now = ListState.parse(search)
        picked = picked_ids(rows)
        # The table tells them in its own order: no other choice, or going back would lead nowhere.
        same = rows is None or set(picked) == set(now.picked)
        shown = replace(sorted_as(columns, now), picked=now.picked if same else picked)
        # All choices at once: somebody may have made the second while the first was under way.
        # Somebody went back, or on. What has changed does not tell: what the table says may overtake what the address has it do,
        # such as after going back twice, and an address that follows one choice may come together with the next.
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
    """Ids of the selected rows, as the table tells them and as it is told them."""
    if isinstance(rows, dict):
        return tuple(map(str, rows.get("ids") or ()))
    return tuple(str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row) if isinstance(rows, list) else ()


def asked_rows(source: RunSource, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of runs in view; those that are gone are left out: the list will know."""
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
    """The state with the order that the table has; as it is while the table has not said."""
    if not isinstance(columns, list):
        return now
    order = next(((one["colId"], one["sort"]) for one in columns if isinstance(one, dict) and one.get("sort")), None)
    sort, descending = (None, False) if order is None else (str(order[0]), order[1] == "desc")
    return replace(now, sort=sort, descending=descending)


def _column(column: dict[str, Any], state: ListState) -> dict[str, Any]:
    order = "desc" if state.descending else "asc"
    return {**column, "sort": order if column.get("colId") == state.sort else None, "sortIndex": None}
