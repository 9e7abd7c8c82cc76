"""Horizontal bars, one row each, and their styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.dashboards.charts.palette import BarStyle, Palette


def bar_marker(style: BarStyle, colors: Palette) -> dict[str, Any]:
    """Return the marker of the bars of a kind."""
    pattern = {"shape": style.hatch, "size": 6, "solidity": 0.25, "fgcolor": colors.surface, "fillmode": "overlay"}
    return {"color": getattr(colors, style.color), "line": {"width": 0}, "pattern": pattern}


def row_bars(
    figure: go.Figure,
    style: BarStyle,
    lengths: Sequence[float | None] | NDArray[np.floating[Any]],
    colors: Palette,
    **others: Any,
) -> None:
    """Add horizontal bars, the first in the top row of ``rows_axis``. ``others``: further or other settings of the bars."""
    rows = list(range(len(lengths)))
    figure.add_bar(
        **{"x": lengths, "y": rows, "orientation": "h", "name": style.label, "marker": bar_marker(style, colors), **others}
    )


def frame_row(figure: go.Figure, row: float, colors: Palette, *, half: float = 0.5) -> None:
    """Frame a row of a figure, ``half`` of whose height is given."""
    line = {"color": colors.emphasis, "width": 2}
    figure.add_shape(type="rect", xref="x domain", x0=0, x1=1, y0=row - half, y1=row + half, line=line)
