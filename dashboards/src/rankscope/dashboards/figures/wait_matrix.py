"""Waits within one process group as a matrix: victims as rows, origins as columns."""

from __future__ import annotations

from html import escape
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.dashboards.data.blame import WaitGroup
from rankscope.dashboards.figures.frame import framed, note
from rankscope.dashboards.figures.heatmap import coloring
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import time_unit

NOBODY: Final = "Nobody waited for anybody in this group, as far as its evidence tells."
_TICKS: Final = 24
_NAME: Final = 28
"""Maximum length of a host's name at the axis. The hover text has all of it."""


def wait_cells(group: WaitGroup) -> NDArray[np.float32]:
    """Return waits [victims, origins] in microseconds. For ranks the diagonal is NaN: a rank does not wait for itself."""
    cells = np.zeros((len(group.names), len(group.names)), np.float32)
    cells[group.victims, group.origins] = group.waited_us
    if not group.by_host:
        np.fill_diagonal(cells, np.nan)
    return cells


def wait_matrix(group: WaitGroup, colors: Palette, *, blamed: int | None = None, picked: int | None = None) -> go.Figure:
    """Draw a heat map of ``wait_cells``. Columns of the blamed and the picked rank are framed."""
    cells = wait_cells(group)
    if not np.nansum(cells):
        return note(NOBODY, colors)
    size, unit = time_unit(float(np.nanmax(cells)))
    count, what = len(group.names), "host" if group.by_host else "rank"
    names = [escape(name) for name in group.names]
    worst = [f", most for rank {rank}" if group.by_host else "" for rank in group.worst]
    figure = go.Figure(
        go.Heatmap(
            z=cells / np.float32(size),
            zmin=0,
            **coloring(unit, colors),
            hoverongaps=False,
            xgap=1 if count <= 64 else 0,
            ygap=1 if count <= 64 else 0,
            # The template refers to axis names, which are sent once, not once per cell.
            hovertemplate=f"<b>%{{y}}</b> waited %{{z:,.2f}} {unit}<br>for <b>%{{x}}</b><extra></extra>",
            x=[f"{what} {name}{told}" for name, told in zip(names, worst, strict=True)],
            y=[f"{what} {name}" for name in names],
        )
    )
    framed(figure, colors, height=min(620, max(240, 130 + 24 * count)))
    every = max(1, -(-count // _TICKS))
    shown = range(0, count, every)
    ticks = {
        "type": "category",
        "tickmode": "array",
        "tickvals": list(shown),
        "ticktext": [name if len(name) <= _NAME else f"{name[:_NAME]}…" for name in (names[at] for at in shown)],
        "showgrid": False,
        "zeroline": False,
    }
    figure.update_xaxes(title_text=f"{what} that was waited for", **ticks)
    figure.update_yaxes(title_text=f"{what} that waited", autorange="reversed", **ticks)
    figure.update_layout(plot_bgcolor=colors.missing)
    for rank in {blamed, picked} - {None}:
        if not group.by_host and str(rank) in group.names:
            at = group.names.index(str(rank))
            figure.add_shape(
                type="rect", x0=at - 0.5, x1=at + 0.5, y0=-0.5, y1=count - 0.5, line={"color": colors.emphasis, "width": 2}
            )
    return figure
