"""Figures, drawn for the run as it is, the selection in the address and the colour scheme."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
from dash import Dash, Input, Output, no_update

from rankscope.analysis.steps import METRICS
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.figures.breakdown import breakdown_bars
from rankscope.dashboards.figures.frame import note
from rankscope.dashboards.figures.heatmap import step_heatmap
from rankscope.dashboards.figures.imposed import imposed_bars
from rankscope.dashboards.figures.palette import palette
from rankscope.dashboards.url_state import DEFAULT_METRIC, OverviewState
from rankscope.runs.errors import RankscopeError


def register(app: Dash, source: RunSource) -> None:
    """Add the callbacks that draw."""

    @app.callback(
        Output("breakdown-bars", "figure"),
        Output("imposed-bars", "figure"),
        Input("run", "data"),
        Input("address", "search"),
        Input("scheme", "data"),
    )
    def draw_ranks(run: dict[str, str] | None, search: str | None, scheme: str | None) -> tuple[Any, Any]:
        if run is None:
            return no_update, no_update
        return rank_figures(source, run["run_id"], OverviewState.parse(search), scheme)

    @app.callback(Output("step-heatmap", "figure"), Input("run", "data"), Input("address", "search"), Input("scheme", "data"))
    def draw_steps(run: dict[str, str] | None, search: str | None, scheme: str | None) -> Any:
        return no_update if run is None else step_figure(source, run["run_id"], OverviewState.parse(search), scheme)


def rank_figures(source: RunSource, run_id: str, state: OverviewState, scheme: str | None) -> tuple[go.Figure, go.Figure]:
    """Breakdown and imposed wait of a run, or notes with what is wrong."""
    colors = palette(scheme)
    try:
        analysis = source.analysis(run_id)
    except RankscopeError as error:
        return note(str(error), colors), note(str(error), colors)
    blamed = analysis.verdict.rank
    return (
        breakdown_bars(analysis.ranks, colors, blamed=blamed, picked=state.rank),
        imposed_bars(analysis.imposed_wait, colors, world_size=analysis.source.world_size, blamed=blamed, picked=state.rank),
    )


def step_figure(source: RunSource, run_id: str, state: OverviewState, scheme: str | None) -> go.Figure:
    """Heat map of a run, or a note with what is wrong."""
    colors = palette(scheme)
    name = state.metric if state.metric in METRICS else DEFAULT_METRIC
    try:
        table = source.steps(run_id)
        blamed = source.analysis(run_id).verdict.rank
    except RankscopeError as error:
        return note(str(error), colors)
    return step_heatmap(
        table.matrix(name),
        table.ranks,
        table.steps,
        colors,
        label=METRICS[name].label,
        unit=METRICS[name].unit,
        blamed=blamed,
        picked=state.rank,
    )
