"""Following a run that is still being written."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, no_update

from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.pages.overview import LIVE, rank_options, run_head
from rankscope.dashboards.pages.rank_table import grid_style, rank_rows
from rankscope.dashboards.pages.verdict import verdict_card
from rankscope.runs.errors import RankscopeError


def register(app: Dash, source: RunSource) -> None:
    """Add the callback that asks whether the run has changed; only then is anything analysed or sent."""

    @app.callback(
        Output("run", "data"),
        Output("run-head", "children"),
        Output("verdict", "children"),
        Output("rank-table", "rowData"),
        Output("rank-table", "style"),
        Output("rank-pick", "data"),
        Output("poll", "disabled"),
        Input("poll", "n_intervals"),
        State("run", "data"),
        prevent_initial_call=True,
    )
    def follow(_ticks: int | None, run: dict[str, str] | None) -> tuple[Any, ...]:
        unchanged = (no_update,) * 7
        if run is None:
            return unchanged
        try:
            now = source.summary(run["run_id"])
            # A run falls silent without changing its files.
            if (now.revision, now.status) == (run["revision"], run.get("status")):
                return no_update, run_head(now), *(no_update,) * 4, now.status not in LIVE
            analysis = source.analysis(run["run_id"])
        except RankscopeError:
            return unchanged  # being moved or written; the page keeps what it has and asks again
        rows = rank_rows(analysis)
        return (
            {**run, "revision": now.revision, "status": now.status},
            run_head(now),
            verdict_card(now, analysis),
            rows,
            grid_style(rows),
            rank_options(analysis),
            now.status not in LIVE,
        )
