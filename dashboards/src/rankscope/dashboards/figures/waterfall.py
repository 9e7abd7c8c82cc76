"""Waterfall from the ideal step time to the actual one, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.result.costs import PartName, Waterfall
from rankscope.dashboards.figures.frame import framed, hatched, note, rows_axis
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration, time_unit

NO_WATERFALL: Final = (
    "There are too few steps to say where the time of one goes.<br>It shows once every rank has done a few after warm-up."
)


@dataclass(frozen=True, slots=True)
class Look:
    """Look of a part: name, key in the palette, hatching."""

    label: str
    key: str
    hatch: str


LOOKS: Final[dict[PartName, Look]] = {
    "ideal": Look("ideal", "overlap", ""),
    "compute": Look("compute", "compute", ""),
    "exposed_communication": Look("exposed communication", "exposed_communication", "x"),
    "straggler_wait": Look("straggler wait", "straggler_wait", "\\"),
    "copies": Look("copies", "exposed_memcpy", "."),
    "input": Look("input", "input", "/"),
    "host": Look("host", "idle", "-"),
    "pipeline_bubble": Look("pipeline bubble", "pipeline_bubble", "|"),
    "unexplained": Look("unexplained", "missing", "+"),
}

ACTUAL: Final = "actual"


def waterfall_bars(waterfall: Waterfall | None, colors: Palette) -> go.Figure:
    """Draw each part as a bar that begins at the end of the previous one. The last row is the whole step.

    The duration is below each name: a narrow screen has no room beside the bars. An unknown part has the text "not known" and no
    bar, which distinguishes it from zero.
    """
    if waterfall is None or waterfall.step_us <= 0:
        return note(NO_WATERFALL, colors)
    size, unit = time_unit(waterfall.step_us)
    figure = go.Figure()
    ends = 0.0
    labels = []
    for row, part in enumerate(waterfall.parts):
        look = LOOKS[part.name]
        if part.us is None or part.share is None:
            labels.append(f"{look.label}<br><i>not known</i>")
            continue
        labels.append(f"{look.label}<br><b>{duration(part.us) if part.us else f'0 {unit}'}</b> · {100 * part.share:.0f}%")
        figure.add_bar(
            x=[part.us / size],
            y=[row],
            base=[ends / size],
            orientation="h",
            name=look.label,
            marker=hatched(getattr(colors, look.key), look.hatch, colors),
            hovertemplate=f"<b>{look.label}</b><br>%{{x:,.2f}} {unit}"
            f"<br>{100 * part.share:.1f}% of the {waterfall.unit}<extra></extra>",
        )
        ends += part.us
    last = len(waterfall.parts)
    figure.add_bar(
        x=[waterfall.step_us / size],
        y=[last],
        orientation="h",
        name=ACTUAL,
        marker={"color": "rgba(0,0,0,0)", "line": {"color": colors.emphasis, "width": 2}},
        hovertemplate=f"<b>{ACTUAL} {waterfall.unit}</b><br>%{{x:,.2f}} {unit}<extra></extra>",
    )
    labels.append(f"<b>{ACTUAL} {waterfall.unit}<br>{duration(waterfall.step_us)}</b>")
    framed(figure, colors, height=70 + 36 * len(labels))
    figure.update_layout(barmode="overlay", bargap=0.3, showlegend=False)
    rows_axis(figure, labels, fixedrange=True)
    figure.update_xaxes(title_text=f"{unit} per {waterfall.unit}", range=[0, 1.02 * waterfall.step_us / size], fixedrange=True)
    return figure
