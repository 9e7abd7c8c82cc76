"""Imposed wait by cause: per rank, and over the steps of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.dashboards.data.blame import BlamedRank, CauseTimeline
from rankscope.dashboards.figures.breakdown import rank_label
from rankscope.dashboards.figures.frame import framed, hatched, legend_above, note, rows_axis
from rankscope.dashboards.figures.palette import Palette
from rankscope.dashboards.figures.units import duration, time_unit

SHOWN: Final = 12
"""Maximum number of ranks shown, the costliest first. The table has all of them."""

NO_STEPS: Final = (
    "What made ranks late is not known:<br>it takes five steps on record or more, of two ranks or more,<br>"
    "with own time told from waiting."
)
NOBODY: Final = "No rank made another one wait."

_LEGEND: Final[dict[str, Any]] = {"font": {"size": 12}, "traceorder": "normal"}


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: name, role in the palette, hatching."""

    label: str
    role: str
    hatch: str


CAUSES: Final[dict[str, Cause]] = {
    "input": Cause("Slow input", "exposed_memcpy", "."),
    "checkpoint": Cause("Checkpoint", "exposed_memcpy", "\\"),
    "evaluation": Cause("Evaluation", "exposed_memcpy", "-"),
    "gc": Cause("Garbage collection", "overlap", "x"),
    "cpu_contention": Cause("Waiting for a CPU", "exposed_communication", "/"),
    "forward": Cause("Longer forward", "compute", ""),
    "backward": Cause("Longer backward", "overlap", ""),
    "optimizer": Cause("Longer optimizer", "compute", "/"),
    "between_steps": Cause("Longer between steps", "overlap", "|"),
    "unknown": Cause("Not told apart", "idle", ""),
}
"""Causes, in stacking order."""


def cause_bars(
    ranks: Sequence[BlamedRank], colors: Palette, *, blamed: int | None = None, picked: int | None = None
) -> go.Figure:
    """Draw horizontal stacked bars per cause for the ranks that imposed the most wait."""
    known = [rank for rank in ranks if rank.steps_us is not None]
    if not known:
        return note(NO_STEPS if not ranks or ranks[0].steps_us is None else NOBODY, colors)
    top = sorted((rank for rank in known if rank.steps_us), key=lambda rank: -(rank.steps_us or 0.0))[:SHOWN]
    if not top:
        return note(NOBODY, colors)
    longest = top[0].steps_us or 0.0
    size, unit = time_unit(longest)
    at = np.arange(len(top))
    figure = go.Figure()
    for key, cause in CAUSES.items():
        values = np.array([rank.causes_us.get(key, 0.0) for rank in top]) / size
        if values.any():
            figure.add_bar(
                x=values,
                y=at,
                orientation="h",
                name=cause.label,
                marker=hatched(getattr(colors, cause.role), cause.hatch, colors),
                hovertext=[str(rank.rank) for rank in top],
                hovertemplate=f"<b>rank %{{hovertext}}</b><br>{cause.label}: %{{x:,.2f}} {unit}<extra></extra>",
            )
    framed(figure, colors, height=110 + 34 * max(len(top), 2))
    for index, rank in enumerate(top):
        figure.add_annotation(
            x=(rank.steps_us or 0.0) / size, y=index, text=duration(rank.steps_us or 0.0), showarrow=False, xanchor="left",
            xshift=6, font={"size": 12, "color": colors.text},
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.28)
    legend_above(figure, **_LEGEND)
    rows_axis(figure, [rank_label(rank.rank, blamed, picked) for rank in top])
    figure.update_xaxes(title_text=f"{unit} that the other ranks waited", range=[0, 1.3 * longest / size])
    return figure


def cause_timeline(timeline: CauseTimeline | None, colors: Palette) -> go.Figure:
    """Draw stacked bars of imposed wait per step, by cause. Hover text names the rank that imposed the most."""
    if timeline is None:
        return note(NO_STEPS, colors)
    if not timeline.causes_us:
        return note(NOBODY, colors)
    first, last, steps = (np.array(values) for values in (timeline.first, timeline.last, timeline.steps))
    per_step = {cause: np.array(values) / steps for cause, values in timeline.causes_us.items()}
    size, unit = time_unit(float(sum(per_step.values(), start=np.zeros(len(steps))).max()))
    hover = [
        f"{span_of(begin, end)}<br>most of it: rank {rank}{'' if share is None else f' ({100 * share:.0f}%)'}"
        for begin, end, rank, share in zip(timeline.first, timeline.last, timeline.worst, timeline.worst_share, strict=True)
    ]
    figure = go.Figure()
    for key, cause in CAUSES.items():
        if key in per_step:
            figure.add_bar(
                x=(first + last) / 2,
                y=(per_step[key] / size).astype(np.float32),
                width=last - first + 1,
                name=cause.label,
                marker=hatched(getattr(colors, cause.role), cause.hatch, colors),
                hovertext=hover,
                hovertemplate=f"%{{hovertext}}<br>{cause.label}: %{{y:,.2f}} {unit} per step<extra></extra>",
            )
    framed(figure, colors, height=300)
    figure.update_layout(barmode="stack", bargap=0)
    legend_above(figure, **_LEGEND)
    figure.update_xaxes(title_text="step", showgrid=False, range=[timeline.first[0] - 0.5, timeline.last[-1] + 0.5])
    figure.update_yaxes(title_text=f"{unit} waited per step, all ranks", rangemode="tozero")
    return figure


def span_of(first: int, last: int) -> str:
    """Return ``step 7`` or ``steps 10 to 19``."""
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
