"""Figures of the overview: the waterfall of a step, and the trend over the steps."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rankscope.analysis.result.costs import PartName, Waterfall, WaterfallPart
from rankscope.dashboards.charts.bars import bar_marker
from rankscope.dashboards.charts.downsampled_trend import DownsampledTrend, binned, downsample
from rankscope.dashboards.charts.frame import fix_margins, framed, label_width, legend_above, note, rows_axis, steps_axis
from rankscope.dashboards.charts.palette import BarStyle, Palette
from rankscope.dashboards.data.trend import MEDIAN, PERCENTILES, Trend, stretches
from rankscope.dashboards.words.units import duration, in_unit, time_unit

NO_WATERFALL: Final = (
    "Where a step's time goes is not known yet.<br>It is shown once every rank has finished a few steps after warm-up."
)


STYLES: Final[dict[PartName, BarStyle]] = {
    "ideal": BarStyle("ideal", "overlap", ""),
    "compute": BarStyle("compute", "compute", ""),
    "exposed_communication": BarStyle("exposed communication", "exposed_communication", "x"),
    "straggler_wait": BarStyle("waiting for later ranks", "straggler_wait", "\\"),
    "copies": BarStyle("copies", "exposed_memcpy", "."),
    "input": BarStyle("input", "input", "/"),
    "host": BarStyle("host", "idle", "-"),
    "pipeline_bubble": BarStyle("pipeline bubble", "pipeline_bubble", "|"),
    "unexplained": BarStyle("unexplained", "missing", "+"),
}

MEAN: Final = "mean"

_ONLY_IF_KNOWN: Final[frozenset[PartName]] = frozenset({"ideal", "pipeline_bubble"})
"""Parts of some jobs only: those with a pipeline, or with known floating-point operations and peak."""


def parts_of(waterfall: Waterfall) -> list[WaterfallPart]:
    """Return the parts of the step that apply to the job."""
    return [part for part in waterfall.parts if part.us is not None or part.name not in _ONLY_IF_KNOWN]


def waterfall_bars(waterfall: Waterfall | None, colors: Palette) -> go.Figure:
    """Draw each part as a bar that begins at the end of the previous one. The last row is the whole step.

    The duration is below each name: a narrow screen has no room beside the bars. An unknown part has the text "not known" and no
    bar, which distinguishes it from zero. ``parts_of`` leaves out parts that do not apply.
    """
    if waterfall is None or waterfall.step_us <= 0:
        return note(NO_WATERFALL, colors)
    size, unit = time_unit(waterfall.step_us)
    parts = parts_of(waterfall)
    figure = go.Figure()
    ends = 0.0
    labels = []
    for row, part in enumerate(parts):
        style = STYLES[part.name]
        if part.us is None or part.share is None:
            labels.append(f"{style.label}<br><i>not known</i>")
            continue
        labels.append(f"{style.label}<br><b>{in_unit(part.us, (size, unit))}</b> · {100 * part.share:.0f}%")
        figure.add_bar(
            x=[part.us / size],
            y=[row],
            base=[ends / size],
            orientation="h",
            name=style.label,
            marker=bar_marker(style, colors),
            hovertemplate=f"<b>{style.label}</b><br>%{{x:,.2f}} {unit}"
            f"<br>{100 * part.share:.1f}% of the {waterfall.unit}<extra></extra>",
        )
        ends += part.us
    last = len(parts)
    figure.add_bar(
        x=[waterfall.step_us / size],
        y=[last],
        orientation="h",
        name=MEAN,
        marker={"color": "rgba(0,0,0,0)", "line": {"color": colors.emphasis, "width": 2}},
        hovertemplate=f"<b>{MEAN} {waterfall.unit}</b><br>%{{x:,.2f}} {unit}<extra></extra>",
    )
    labels.append(f"<b>{MEAN} {waterfall.unit}<br>{duration(waterfall.step_us)}</b>")
    framed(figure, colors, height=70 + 36 * len(labels))
    figure.update_layout(barmode="overlay", bargap=0.3, showlegend=False)
    rows_axis(figure, labels, fixedrange=True)
    fix_margins(figure, left_px=label_width(labels) + 16)
    figure.update_xaxes(title_text=f"{unit} per {waterfall.unit}", range=[0, 1.02 * waterfall.step_us / size], fixedrange=True)
    return figure


STEPS_MARGIN: Final = 76
"""Pixels left of all charts over the steps, so that the same step is at the same place in charts below each other."""

NO_STEPS: Final = "No step has been recorded yet.<br>The trend begins with the first training steps."
NO_RATE: Final = "Throughput is not known:<br>the script does not report samples or tokens of its steps."

_BANDS: Final = ((5, 95, 0.16), (25, 75, 0.3))
"""Lower percentile, upper percentile and opacity of each band."""


def trend_lines(trend: Trend, first: int, last: int, colors: Palette, *, attempt: str | None = None) -> go.Figure:
    """Draw step time (median, longest, bands over the ranks) and own time of the slowest rank; mark profiled steps and changes.

    ``first`` and ``last`` (exclusive) are indices into ``trend``. ``attempt`` is the text at the first step of the trend.
    """
    downsampled = downsample(trend, first, last)
    if not np.isfinite(downsampled.wall_us).any():
        return note(NO_STEPS, colors)
    size, unit = time_unit(float(np.nanmax([np.nanmax(downsampled.longest_us), _highest(downsampled.highest_own_us)])))
    figure = go.Figure()
    for low, high, density in _BANDS:
        _band(figure, downsampled, (low, high), size, _see_through(colors.compute, density))
    many = downsampled.steps_per_point > 1
    each = f"steps from %{{x}}, {downsampled.steps_per_point} each" if many else "step %{x}"
    figure.add_scatter(
        x=downsampled.steps,
        y=downsampled.longest_us / size,
        name="step time, longest" + (" step" if many else " rank"),
        line={"color": colors.muted, "width": 1.5},
        hovertemplate=f"<b>{each}</b><br>longest step time: <b>%{{y:,.2f}} {unit}</b><extra></extra>",
    )
    figure.add_scatter(
        x=downsampled.steps,
        y=downsampled.wall_us[MEDIAN] / size,
        name="step time, median rank",
        line={"color": colors.compute, "width": 2},
        hovertemplate=f"<b>{each}</b><br>step time of the median rank: <b>%{{y:,.2f}} {unit}</b><extra></extra>",
    )
    if np.isfinite(downsampled.highest_own_us).any():
        slowest = ["not known" if rank < 0 else f"rank {rank}" for rank in downsampled.slowest]
        figure.add_scatter(
            x=downsampled.steps,
            y=downsampled.highest_own_us / size,
            name="own time, slowest rank" + (" and step" if many else ""),
            line={"color": colors.exposed_communication, "width": 1.5, "dash": "dot"},
            customdata=slowest,
            hovertemplate=f"<b>{each}</b><br>slowest: %{{customdata}}, own time <b>%{{y:,.2f}} {unit}</b><extra></extra>",
        )
    framed(figure, colors, height=340)
    _mark_profiled(figure, downsampled, colors)
    for change in trend.changes:
        if first <= change.at < last:
            _mark(figure, int(trend.steps[change.at]), _by_how_much(change.before, change.after), colors)
    if attempt is not None and first == 0:
        _mark(figure, int(trend.steps[0]), attempt, colors)
    _axis_of_steps(figure, downsampled)
    figure.update_yaxes(title_text=unit, rangemode="tozero", zeroline=False, fixedrange=True)
    legend_above(figure, font={"size": 12})
    return figure


def rate_line(
    trend: Trend, first: int, last: int, colors: Palette, *, replicas: int | None
) -> tuple[go.Figure, NDArray[np.float32], DownsampledTrend]:
    """Draw tokens per second over the steps, or samples if tokens are unknown. Return the figure, rate per point, and course.

    ``replicas``: number of ranks with their own batch; if ``None`` (unknown), the rate is that of one rank.
    """
    downsampled = downsample(trend, first, last)
    name = rate_name(trend)
    counts = trend.tokens if name == "tokens" else trend.samples
    seconds = trend.wall_us[MEDIAN, first:last].astype(np.float64) / 1e6
    counted = counts[first:last] * (replicas or 1)
    rate = np.divide(counted, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    rate[trend.profiled[first:last]] = np.nan
    shown = binned(rate, downsampled.steps_per_point)
    if not np.isfinite(shown).any():
        return note(NO_RATE, colors), shown, downsampled
    of = "of the job" if replicas else "of one rank"
    figure = go.Figure(
        go.Scatter(
            x=downsampled.steps,
            y=shown,
            name=f"{name} per second",
            line={"color": colors.input, "width": 2},
            hovertemplate=f"<b>step %{{x}}</b><br><b>%{{y:,.4~g}} {name}/s</b> {of}<extra></extra>",
        )
    )
    framed(figure, colors, height=190)
    _axis_of_steps(figure, downsampled)
    figure.update_yaxes(title_text=f"{name}/s {of}", rangemode="tozero", zeroline=False, fixedrange=True)
    return figure, shown, downsampled


def rate_name(trend: Trend) -> str:
    """Return the counted unit: ``tokens`` if the run reports them, else ``samples``."""
    return "tokens" if np.isfinite(trend.tokens).any() else "samples"


def _band(figure: go.Figure, downsampled: DownsampledTrend, ends: tuple[int, int], size: float, color: str) -> None:
    low, high = (downsampled.wall_us[PERCENTILES.index(end)] / size for end in ends)
    edge = {"width": 0, "color": color}
    figure.add_scatter(x=downsampled.steps, y=low, line=edge, mode="lines", hoverinfo="skip", showlegend=False)
    figure.add_scatter(
        x=downsampled.steps,
        y=high,
        line=edge,
        mode="lines",
        hoverinfo="skip",
        fill="tonexty",
        fillcolor=color,
        name=f"{ends[0]} to {ends[1]}% of the ranks",
    )


def _see_through(color: str, density: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{density})"


def _highest(values: NDArray[np.float32]) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0


def _by_how_much(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.0f}%" if before else duration(after)


def _mark(figure: go.Figure, step: int, text: str, colors: Palette) -> None:
    figure.add_vline(
        x=step,
        line={"color": colors.emphasis, "width": 1, "dash": "dash"},
        annotation={
            "text": text, "font": {"size": 12, "color": colors.text}, "bgcolor": colors.surface, "yanchor": "top",
            "xanchor": "left",
        },
        annotation_position="top right",
    )  # fmt: skip


def _mark_profiled(figure: go.Figure, downsampled: DownsampledTrend, colors: Palette) -> None:
    """Mark profiled steps by strips at the lower edge, with an entry in the legend."""
    half = downsampled.steps_per_point / 2
    color = colors.exposed_memcpy
    for begin, end in stretches(downsampled.profiled):
        figure.add_shape(
            type="rect",
            x0=downsampled.steps[begin] - half,
            x1=downsampled.steps[end - 1] + half,
            y0=0,
            y1=0.035,
            yref="y domain",
            line={"width": 0},
            fillcolor=color,
        )
    if downsampled.profiled.any():
        mark = {"color": color, "symbol": "square", "size": 9}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=mark, name="profiled steps", hoverinfo="skip")


def _axis_of_steps(figure: go.Figure, downsampled: DownsampledTrend) -> None:
    half = downsampled.steps_per_point / 2
    span = (float(downsampled.steps[0]) - half, float(downsampled.steps[-1]) + half)
    steps_axis(figure, len(downsampled.steps) * downsampled.steps_per_point, showgrid=False, zeroline=False, range=span)
    fix_margins(figure, left_px=STEPS_MARGIN)
