"""One collective on all its ranks: arrival, waiting, and the transfer after the last arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.figures.breakdown import rank_label
from rankscope.dashboards.figures.frame import framed, hatched, rows_axis
from rankscope.dashboards.figures.palette import Palette

SHOWN: Final = 48
"""Maximum number of ranks drawn: the ``_FIRST`` earliest and the rest from the latest. The table has all."""
_FIRST: Final = 12


@dataclass(frozen=True, slots=True)
class Arrival:
    """One rank in a collective. Times are in milliseconds since the first rank's arrival."""

    rank: int
    arrival_ms: float
    wait_ms: float | None
    """``None`` if unknown."""
    end_ms: float


def arrival_bars(arrivals: Sequence[Arrival], colors: Palette, *, last: int | None, picked: int | None = None) -> go.Figure:
    """Draw a bar per rank from its arrival to its end, the earliest at the top. Rank ``last`` has a flag."""
    shown = list(arrivals) if len(arrivals) <= SHOWN else [*arrivals[:_FIRST], *arrivals[_FIRST - SHOWN :]]
    at = np.arange(len(shown))
    begin = np.array([one.arrival_ms for one in shown])
    whole = np.array([one.end_ms for one in shown]) - begin
    wait = np.array([0.0 if one.wait_ms is None else min(one.wait_ms, long) for one, long in zip(shown, whole, strict=True)])
    known = all(one.wait_ms is not None for one in shown)
    figure = go.Figure()
    kinds = (
        ("Waiting", begin, wait, colors.straggler_wait, "\\"),
        (
            "Transfer" if known else "In the collective",
            begin + wait,
            whole - wait,
            colors.exposed_communication if known else colors.unmatched,
            "x" if known else "|",
        ),
    )
    for label, base, length, color, hatch in kinds:
        figure.add_bar(
            x=length,
            base=base,
            y=at,
            orientation="h",
            width=0.8,
            name=label,
            marker=hatched(color, hatch, colors),
            hovertext=[f"rank {one.rank}" for one in shown],
            customdata=begin,
            hovertemplate="<b>%{hovertext}</b><br>came %{customdata:,.3f} ms after the first<br>"
            + label
            + ": %{x:,.3f} ms<extra></extra>",
        )
    framed(figure, colors, height=80 + (26 if len(shown) <= 16 else 13) * max(2, len(shown)))
    labels = [rank_label(one.rank, last, picked) for one in shown]
    if len(shown) < len(arrivals):
        figure.add_hline(y=_FIRST - 0.5, line={"color": colors.muted, "width": 1, "dash": "dot"})
        figure.add_annotation(
            x=1, xref="paper", xanchor="right", y=_FIRST - 0.5, text=f"{len(arrivals) - SHOWN:,} more ranks between",
            showarrow=False, bgcolor=colors.surface, font={"size": 11, "color": colors.muted},
        )  # fmt: skip
    figure.update_layout(barmode="overlay", showlegend=False)
    rows_axis(figure, labels, fixedrange=True)
    figure.update_xaxes(title_text="ms since the first rank came", rangemode="tozero")
    return figure
