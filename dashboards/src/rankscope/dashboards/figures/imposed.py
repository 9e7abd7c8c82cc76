"""Imposed wait per rank: time that the other ranks waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.result.analysis import ImposedWait
from rankscope.dashboards.figures.breakdown import rank_label
from rankscope.dashboards.figures.frame import framed, hatched, note, rows_axis
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration, time_unit

SHOWN: Final = 10
"""Maximum number of ranks shown, the costliest first. The table has all of them."""

ALONE: Final = "There is one rank: nobody waits for anybody."
NOBODY: Final = "No rank was found waiting for another one."
NO_EVIDENCE: Final = "Who waited for whom is not known yet:<br>it takes steps with collectives, recorded on two ranks or more."


def imposed_bars(
    imposed: Sequence[ImposedWait],
    colors: Palette,
    *,
    world_size: int | None = None,
    blamed: int | None = None,
    picked: int | None = None,
) -> go.Figure:
    """Draw bars of the ranks that imposed the most wait, split into wait that cost time and wait hidden by compute."""
    if not imposed:
        return note(ALONE if world_size == 1 else NO_EVIDENCE, colors)
    top = [row for row in sorted(imposed, key=lambda row: row.imposed_us, reverse=True) if row.imposed_us > 0][:SHOWN]
    if not top:
        return note(NOBODY, colors)
    size, unit = time_unit(top[0].imposed_us)
    exposed = np.array([row.imposed_exposed_us for row in top]) / size
    total = np.array([row.imposed_us for row in top]) / size
    at = np.arange(len(top))
    names = [str(row.rank) for row in top]
    figure = go.Figure()
    for label, values, color, hatch in (
        ("Cost time", exposed, colors.exposed_communication, "x"),
        ("Hidden by compute", total - exposed, colors.overlap, "/"),
    ):
        figure.add_bar(
            x=values,
            y=at,
            orientation="h",
            name=label,
            marker=hatched(color, hatch, colors),
            hovertext=names,
            customdata=total,
            hovertemplate=f"<b>rank %{{hovertext}}</b><br>{label}: %{{x:,.2f}} of %{{customdata:,.2f}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=64 + 34 * max(len(top), 2))
    for index, row in enumerate(top):
        share = "" if row.share is None else f" · {100 * row.share:.0f}%"
        figure.add_annotation(
            x=total[index], y=index, text=f"{duration(row.imposed_us)}{share}", showarrow=False, xanchor="left", xshift=6,
            font={"size": 12, "color": colors.text},
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.28, showlegend=False)
    rows_axis(figure, [rank_label(row.rank, blamed, picked) for row in top])
    # Leaves room for the text behind the longest bar.
    figure.update_xaxes(title_text=f"{unit} imposed on the other ranks", range=[0, 1.75 * float(total.max())])
    return figure
