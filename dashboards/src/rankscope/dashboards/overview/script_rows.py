"""Rows below the trend of the steps, on the same axis: the script's own metrics and tags."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.data.script import Script
from rankscope.dashboards.words.inert import plotly_text

MOST_POINTS: Final = 1_000
_ROW, _TAG, _GAP = 90, 22, 26
"""Pixels of a metric's row, of a tag's line, and between rows."""


def in_range(script: Script, first: int, last: int) -> Script:
    """Return the reports of steps ``first`` to ``last``, both included; metrics and tags without any are left out."""

    def chosen(steps: NDArray[np.int64]) -> slice:
        return slice(*np.searchsorted(steps, (first, last + 1)).tolist())

    metrics = {name: (steps[chosen(steps)], values[chosen(steps)]) for name, (steps, values) in script.metrics.items()}
    tags = {name: steps[chosen(steps)] for name, steps in script.tags.items()}
    return Script(
        script.rank,
        {name: row for name, row in metrics.items() if len(row[0])},
        {name: steps for name, steps in tags.items() if len(steps)},
    )


def add_rows(figure: go.Figure, script: Script, colors: Palette) -> None:
    """Add a row for each metric, and one for all tags, below what ``figure`` shows. It becomes higher by that."""
    heights = [_ROW] * len(script.metrics) + ([_TAG * len(script.tags) + 8] if script.tags else [])
    if not heights:
        return
    top = sum(heights) + _GAP * len(heights)
    full_height = figure.layout.height + top
    figure.update_layout(height=full_height, yaxis={"domain": [top / full_height, 1]})
    plain = {"fixedrange": True, "zeroline": False, "exponentformat": "power"}
    for number, height in enumerate(heights, start=2):
        top -= _GAP + height
        figure.update_layout({f"yaxis{number}": {**plain, "domain": [top / full_height, (top + height) / full_height]}})
    for number, (name, values_at) in enumerate(script.metrics.items(), start=2):
        figure.update_layout({f"yaxis{number}": {"title": {"text": plotly_text(name, 24)}}})
        _add_metric(figure, f"y{number}", name, values_at, colors)
    last = len(heights) + 1
    if script.tags:
        _add_tags(figure, last, script.tags, colors)
    figure.update_xaxes(anchor=f"y{last}")


def _add_metric(
    figure: go.Figure, axis: str, name: str, values_at: tuple[NDArray[np.int64], NDArray[np.float64]], colors: Palette
) -> None:
    steps, values = values_at
    wide = -(-len(steps) // MOST_POINTS)
    first = np.arange(0, len(steps), wide)
    means = np.add.reduceat(values, first) / np.diff(np.append(first, len(steps)))
    if wide > 1:  # a mean hides a single outlier
        edge = {"yaxis": axis, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=steps[first], y=np.minimum.reduceat(values, first), **edge)
        extent = {"fill": "tonexty", "fillcolor": colors.grid, "name": "lowest to highest"}
        figure.add_scatter(x=steps[first], y=np.maximum.reduceat(values, first), **edge, **extent)
    figure.add_scatter(
        x=steps[first],
        y=means,
        yaxis=axis,
        mode="lines+markers" if len(first) <= 60 else "lines",
        line={"color": colors.input, "width": 2},
        marker={"size": 5},
        showlegend=False,
        hovertemplate=f"<b>step %{{x}}</b><br>{plotly_text(name)} <b>%{{y:,.5~g}}</b><extra></extra>",
    )


def _add_tags(figure: go.Figure, number: int, tags: dict[str, NDArray[np.int64]], colors: Palette) -> None:
    for row, (tag, steps) in enumerate(tags.items()):
        sampled_steps = steps[:: max(1, -(-len(steps) // MOST_POINTS))]
        figure.add_scatter(
            x=sampled_steps,
            y=np.full(len(sampled_steps), row),
            yaxis=f"y{number}",
            mode="markers",
            marker={"symbol": "line-ns", "size": 12, "line": {"color": colors.text, "width": 1.5}},
            showlegend=False,
            hovertemplate=f"<b>step %{{x}}</b><br>{plotly_text(tag)}<extra></extra>",
        )
    labels = [plotly_text(tag, 24) for tag in tags]
    rows = {"tickmode": "array", "tickvals": list(range(len(tags))), "ticktext": labels, "showgrid": False}
    figure.update_layout({f"yaxis{number}": {**rows, "range": [len(tags) - 0.5, -0.5]}})
