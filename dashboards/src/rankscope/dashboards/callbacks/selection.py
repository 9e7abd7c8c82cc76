"""Selection and address follow each other; the address has the say."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update

from rankscope.dashboards.figures.binning import MAX_ROWS
from rankscope.dashboards.url_state import OverviewState


def register(app: Dash) -> None:
    """Add the callback that keeps the selectors, clicks in figures and the address in step."""

    @app.callback(
        Output("address", "search"),
        Output("metric", "value"),
        Output("rank-pick", "value"),
        Input("metric", "value"),
        Input("rank-pick", "value"),
        Input("breakdown-bars", "clickData"),
        Input("imposed-bars", "clickData"),
        Input("step-heatmap", "clickData"),
        Input("address", "search"),
        State("rank-pick", "data"),
        prevent_initial_call=True,
    )
    def select(  # noqa: PLR0917  Dash passes inputs by position
        metric: str | None, rank: str | None, bar: Any, imposed: Any, cell: Any, search: str | None, ranks: list[Any] | None
    ) -> tuple[Any, Any, Any]:
        now = OverviewState.parse(search)
        wanted = now
        match ctx.triggered_id:
            case "metric" | "rank-pick":
                wanted = OverviewState(rank=_number(rank), metric=metric or now.metric)
            case "breakdown-bars":
                wanted = OverviewState(rank=_clicked(bar, "hovertext"), metric=now.metric)
            case "imposed-bars":
                wanted = OverviewState(rank=_clicked(imposed, "hovertext"), metric=now.metric)
            # A row of a binned map is several ranks: which one was meant is not known.
            case "step-heatmap" if ranks is not None and len(ranks) <= MAX_ROWS:
                wanted = OverviewState(rank=_clicked(cell, "y"), metric=now.metric)
        return (
            no_update if wanted == now else wanted.search,
            no_update if wanted.metric == metric else wanted.metric,
            no_update if wanted.rank == _number(rank) else None if wanted.rank is None else str(wanted.rank),
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _clicked(data: Any, field: str) -> int | None:
    """The rank of a clicked mark; ``None`` when the mark has none."""
    try:
        return int(data["points"][0][field])
    except (TypeError, KeyError, IndexError, ValueError):
        return None
