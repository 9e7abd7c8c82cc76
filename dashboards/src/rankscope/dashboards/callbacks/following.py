"""Callback that follows a run that is still being written."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, State, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.pages.run_page import LIVE, run_head, shown, stale_note
from rankscope.dashboards.views.registry import view_of

AS_IT_WAS: Final = "The run cannot be read at the moment; what is shown is as it was before."


def register(app: Dash, source: RunSource) -> None:
    """Add the callback that checks for changes of the run. Figures are drawn and sent only after a change."""

    @app.callback(
        Output("run", "data"),
        Output("run-head", "children"),
        Output("poll", "disabled"),
        Output("run-away", "children"),
        Input("poll", "n_intervals"),
        State("run", "data"),
        State("run-away", "children"),
        prevent_initial_call=True,
    )
    def follow(_ticks: int | None, before: dict[str, str] | None, away: str | None) -> tuple[Any, Any, Any, Any]:
        view = None if before is None else view_of(before["view"])
        if before is None or view is None:
            return (no_update,) * 4
        try:
            run = RunData(source, source.summary(before["run_id"]))
            now, note = shown(run, view), stale_note(run)
        except RankscopeError as error:
            # The run is being moved or written: the page keeps its content and polls again.
            return no_update, no_update, no_update, f"{AS_IT_WAS} {error}"
        said = no_update if note == (away or "") else note
        if now == before:
            return no_update, no_update, no_update, said
        return now, run_head(run), now["status"] not in LIVE, said
