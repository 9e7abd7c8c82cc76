"""Fraction of communication hidden by compute: distribution over all ranks and profiled steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.dashboards.figures.breakdown import NO_WINDOW, rank_label
from rankscope.dashboards.figures.frame import framed, hatched, note
from rankscope.dashboards.figures.palette import Palette

NO_COMMUNICATION: Final = "The profiled steps have no communication: there is nothing to hide."
BINS: Final = 20


def overlap_spread(
    ratios: NDArray[np.floating[Any]],
    ranks: Sequence[int] | NDArray[np.int64],
    colors: Palette,
    *,
    profiled: bool,
    blamed: int | None = None,
    picked: int | None = None,
) -> go.Figure:
    """Draw a histogram of ``ratios`` [ranks, steps], 0 to 1, NaN if unknown. Lines mark its median and those of marked ranks.

    ``profiled``: True if any step was profiled.
    """
    known = ratios[np.isfinite(ratios)]
    if not len(known):
        return note(NO_COMMUNICATION if profiled else NO_WINDOW, colors)
    counts, edges = np.histogram(np.clip(known, 0, 1), bins=BINS, range=(0, 1))
    share = 100 * counts / len(known)
    middles = 50 * (edges[1:] + edges[:-1])
    figure = go.Figure(
        go.Bar(
            x=middles,
            y=share,
            width=100 / BINS * 0.92,
            marker=hatched(colors.overlap, "/", colors),
            customdata=counts,
            hovertemplate=f"<b>%{{x:.1f}}% ± {50 / BINS:g} hidden</b><br>%{{y:.1f}}% of the profiled steps of all ranks"
            " (%{customdata:,})<extra></extra>",
        )
    )
    framed(figure, colors, height=230)
    _mark(figure, 100 * float(np.median(known)), "median", colors, dash="dash", edge="bottom")
    rows = {int(rank): row for row, rank in enumerate(ranks)}
    for rank in dict.fromkeys((blamed, picked)):
        if rank in rows and np.isfinite(ratios[rows[rank]]).any():
            middle = 100 * float(np.nanmedian(ratios[rows[rank]]))
            _mark(figure, middle, rank_label(rank, blamed, picked), colors, dash="solid")
    figure.update_layout(showlegend=False, bargap=0)
    figure.update_xaxes(title_text="% of communication hidden", range=[-1, 101], fixedrange=True)
    figure.update_yaxes(title_text="% of ranks × steps", rangemode="tozero", fixedrange=True)
    return figure


def _mark(figure: go.Figure, at: float, text: str, colors: Palette, *, dash: str, edge: str = "top") -> None:
    figure.add_vline(
        x=at,
        line={"color": colors.emphasis, "width": 2, "dash": dash},
        annotation={"text": text, "font": {"size": 12, "color": colors.text}, "bgcolor": colors.surface},
        annotation_position=f"{edge} right" if at < 80 else f"{edge} left",
    )
