"""Actual step time, and counterfactual step times without one part of the job each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.charts.frame import framed, hatched, note, rows_axis
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.words.units import time_unit

NOTHING: Final = "There is nothing to leave out: the evidence has no parts of this kind."


@dataclass(frozen=True, slots=True)
class Without:
    """Counterfactual step time without one part. ``item`` is its key in the address; ``""`` for the actual step."""

    item: str
    label: str
    step_seconds: float
    worth: str = ""
    """The saving, in words."""


def without_bars(
    actual: Without, ideal: Without, rows: Sequence[Without], colors: Palette, *, chosen: Sequence[str] = ()
) -> go.Figure:
    """Draw bars of the actual step, the step without each of ``rows``, and without any straggler. ``chosen`` items are marked."""
    if not rows:
        return note(NOTHING, colors)
    shown = [actual, *rows, ideal]
    size, unit = time_unit(1e6 * max(row.step_seconds for row in shown))
    lengths = np.array([1e6 * row.step_seconds / size for row in shown])
    at = np.arange(len(shown))
    figure = go.Figure()
    for label, rows_of, color, hatch in (
        ("As it is", [0], colors.idle, ""),
        ("Without one part", list(range(1, len(shown) - 1)), colors.overlap, "/"),
        ("Without any straggler", [len(shown) - 1], colors.compute, ""),
    ):
        figure.add_bar(
            x=lengths[rows_of],
            y=at[rows_of],
            orientation="h",
            name=label,
            marker=hatched(color, hatch, colors),
            hovertext=[shown[row].item for row in rows_of],
            customdata=[f"{escape(shown[row].label)}<br>{escape(shown[row].worth)}" for row in rows_of],
            hovertemplate=f"<b>%{{customdata}}</b><br>a step takes %{{x:,.3g}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=84 + 30 * len(shown))
    for index, row in enumerate(shown):
        figure.add_annotation(
            x=lengths.max(), y=index, text=escape(row.worth), showarrow=False, xanchor="left", xshift=6,
            font={"size": 12, "color": colors.text},
        )  # fmt: skip
    figure.add_shape(
        type="line", x0=lengths[0], x1=lengths[0], y0=-0.5, y1=len(shown) - 0.5,
        line={"color": colors.emphasis, "width": 1, "dash": "dot"},
    )  # fmt: skip
    labels = [f"<b>{escape(row.label)} ✓</b>" if row.item and row.item in chosen else escape(row.label) for row in shown]
    figure.update_layout(barmode="overlay", bargap=0.28, showlegend=False)
    rows_axis(figure, labels)
    figure.update_xaxes(title_text=f"{unit} per step", range=[0, 1.75 * float(lengths.max())], zeroline=False)
    return figure
