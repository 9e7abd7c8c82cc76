"""Callback that follows a run that is still being written."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, State, no_update

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.live.components import drawn
from rankscope.dashboards.live.pages import Pages, stale_note, verdict_kind
from rankscope.dashboards.model.run_head import run_head
from rankscope.dashboards.words.wording import LIVE

AS_IT_WAS: Final = "The run cannot be read at the moment; what is shown is as it was before."


def register(app: Dash, pages: Pages) -> None:
    """Add the callback that checks for changes of the run. Figures are drawn and sent only after a change."""

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
        except RankscopeError as error:
            # The run is being moved or written: the page keeps its content and polls again.
            return no_update, no_update, no_update, f"{AS_IT_WAS} {error}"
        said = no_update if note == (away or "") else note
        if now == before:
            return no_update, no_update, no_update, said
        return now, drawn(run_head(run.summary, verdict_kind(run))), now["status"] not in LIVE, said
