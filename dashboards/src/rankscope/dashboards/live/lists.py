"""Callbacks of the lists of runs and of alerts: search, marked rows."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update

from rankscope.dashboards.live.components import identity, render_blocks
from rankscope.dashboards.runs.view import compare_link

LISTS = ("runs", "alerts")


def register(app: Dash) -> None:
    """Add the callbacks."""
    for name in LISTS:
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("rankscope_lists", "search"),
            Output(identity("grid", name), "className"),  # without an output it would not be called for a new list
            Input(identity("control", "q"), "value"),
            State(identity("grid", name), "id"),
        )

    # Also called for a new list: the browser may have marks of an earlier visit, which change nothing after that.
    @app.callback(Output("runs-compare", "children"), Input(identity("grid", "runs"), "selectedRows"))
    def link_comparison(marked: Any) -> Any:
        """Link the comparison of the marked runs, in the order in which they were marked."""
        if not isinstance(marked, list):
            return no_update
        return render_blocks([compare_link([str(row["id"]) for row in marked if isinstance(row, dict) and "id" in row])])
