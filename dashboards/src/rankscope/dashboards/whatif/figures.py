"""Actual step time, and counterfactual step times without one part of the job each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.charts.bars import row_bars
from rankscope.dashboards.charts.frame import framed, note, rows_axis
from rankscope.dashboards.charts.palette import BarStyle, Palette
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import time_unit

NOTHING: Final = "There is nothing to remove: the evidence has no parts of this kind."


@dataclass(frozen=True, slots=True)
class CounterfactualBar:
    """Counterfactual step time without one part. ``item`` is its key in the address; ``""`` for the actual step."""

    item: str
    label: str
    step_seconds: float
    worth: str = ""
    """The saving, in words."""


def without_bars(
    actual: CounterfactualBar,
    ideal: CounterfactualBar,
    rows: Sequence[CounterfactualBar],
    colors: Palette,
    *,
    chosen: Sequence[str] = (),
) -> go.Figure:
    """Draw bars of the actual step, the step without each of ``rows``, and without any straggler. ``chosen`` items are marked."""
    if not rows:
        return note(NOTHING, colors)
    shown = [actual, *rows, ideal]
    size, unit = time_unit(1e6 * max(row.step_seconds for row in shown))
    lengths = np.array([1e6 * row.step_seconds / size for row in shown])
    figure = go.Figure()
    for style, rows_of in (
        (BarStyle("As it is", "idle"), [0]),
        (BarStyle("Without one part", "overlap", "/"), list(range(1, len(shown) - 1))),
        (BarStyle("Without any straggler", "compute"), [len(shown) - 1]),
    ):
        row_bars(
            figure,
            style,
            lengths[rows_of],
            colors,
            y=rows_of,
            hovertext=[shown[row].item for row in rows_of],
            customdata=[f"{plotly_text(shown[row].label)}<br>{plotly_text(shown[row].worth)}" for row in rows_of],
            hovertemplate=f"<b>%{{customdata}}</b><br>a step takes %{{x:,.3g}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=84 + 30 * len(shown))
    for index, row in enumerate(shown):
        figure.add_annotation(
            x=lengths.max(), y=index, text=plotly_text(row.worth), showarrow=False, xanchor="left", xshift=6,
            font={"size": 12, "color": colors.text},
        )  # fmt: skip
    figure.add_shape(
        type="line", x0=lengths[0], x1=lengths[0], y0=-0.5, y1=len(shown) - 0.5,
        line={"color": colors.emphasis, "width": 1, "dash": "dot"},
    )  # fmt: skip
    names = [plotly_text(row.label) for row in shown]
    labels = [f"<b>{name} ✓</b>" if row.item and row.item in chosen else name for name, row in zip(names, shown, strict=True)]
    figure.update_layout(barmode="overlay", bargap=0.28, showlegend=False)
    rows_axis(figure, labels)
    figure.update_xaxes(title_text=f"{unit} per step", range=[0, 2 * float(lengths.max())], zeroline=False)
    return figure
