"""Figures that compare runs: step times, parts of the step, hosts and ranks with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.compare.compare_result import Comparison, Quantity, RankShift, Shift, Side
from rankscope.dashboards.charts.downsampled_trend import downsample
from rankscope.dashboards.charts.frame import drawn_note, framed, legend_above, rows_axis
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.compare.data import PERCENTS, ComparedRuns
from rankscope.dashboards.data.trend import MEDIAN, Trend
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData, cell
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import duration, time_unit

_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_ROLES: Final = ("compute", "exposed_communication", "overlap", "exposed_memcpy", "text", "muted")
_OUTCOMES: Final = {
    "worse": "worse", "better": "better", "mixed": "mixed", "same": "the same, or too small to matter",
    "undecided": "undecided", "untested": "not tested", "insufficient_data": "not enough data",
}  # fmt: skip
"""Outcomes of a test, in words."""
_SYMBOLS: Final = {
    "worse": "triangle-right", "better": "triangle-left", "mixed": "diamond-open", "same": "circle-open",
    "undecided": "circle-dot", "untested": "x-thin-open", "insufficient_data": "x-thin-open",
}  # fmt: skip
_OF_HOSTS: Final = ("mixed", "worse", "better", "undecided", "insufficient_data")
"""Outcomes of a rank that become that of its host, the first that any has."""
SHOWN: Final = 40
"""Maximum number of rows in a figure. Its table has all of them."""
_LEGEND_LETTERS: Final = 80
_SHORT_NAMES: Final = 12
"""Length of two names together up to which they are on one line in the title of an axis."""
_TITLE_LETTERS: Final = 26
"""Maximum length of a name in the title of an axis."""
_MOST_LETTERS: Final = 36
"""Maximum length of a name at an axis or in a legend. The hover text or the table has all of it."""


def step_distributions(compared: ComparedRuns, colors: Palette) -> DrawnFigure:
    """Draw the cumulative distribution of step times, one line per side. Lines differ in colour and dash."""
    sides = [
        (side, distribution)
        for side, distribution in zip(compared.result.sides, compared.distributions, strict=True)
        if distribution.percentiles_us
    ]
    if not sides:
        return drawn_note("No side has a usable step: there is nothing to compare.", colors)
    size, unit = time_unit(max(distribution.percentiles_us[99] for _, distribution in sides))
    figure = go.Figure()
    for index, (side, distribution) in enumerate(sides):
        figure.add_scatter(
            x=[value / size for value in distribution.percentiles_us],
            y=list(PERCENTS),
            mode="lines",
            name=plotly_text(side.label, _LEGEND_LETTERS),
            line={
                "color": getattr(colors, _ROLES[index % len(_ROLES)]),
                "dash": _DASHES[index % len(_DASHES)],
                "width": 2.5,
                "shape": "hv",
            },
            hovertemplate=f"<b>{plotly_text(side.label)}</b><br>%{{y}}% of steps take at most %{{x:,.4g}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=340)
    legend_above(figure)
    lowest, highest = (
        min(distribution.percentiles_us[0] for _, distribution in sides),
        max(distribution.percentiles_us[99] for _, distribution in sides),
    )
    room = 0.05 * (highest - lowest) or 0.05 * highest
    # The axis ends at the 99th percentile: one step with a checkpoint would compress all others. The CSV has the rest.
    figure.update_xaxes(title_text=f"step time, {unit}", range=[(lowest - room) / size, (highest + room) / size])
    figure.update_yaxes(title_text="% of steps", range=[0, 101])
    rows = [
        (side.label, side.run_id, percent, value)
        for side, distribution in sides
        for percent, value in zip(PERCENTS, distribution.percentiles_us, strict=True)
    ]
    medians = ", ".join(f"{side.label} {duration(distribution.percentiles_us[50])}" for side, distribution in sides)
    return DrawnFigure(
        figure, FigureData(("side", "run", "percentile [%]", "step time [us]"), rows), f"Median step time: {medians}."
    )


@dataclass(frozen=True, slots=True)
class _DifferenceRow:
    """One difference with its interval, in microseconds. Bounds are ``None`` if it was not tested."""

    name: str
    difference: float
    low: float | None
    high: float | None
    outcome: str


def part_differences(comparison: Comparison, colors: Palette) -> DrawnFigure:
    """Draw B minus A for each part of the average step, with its confidence interval. Parts add up to the step's difference."""
    chosen = [
        quantity for quantity in comparison.quantities if quantity.role in ("step", "part") and quantity.difference is not None
    ]
    if not chosen:
        reason = f"{comparison.b} cannot be compared with {comparison.a}: {_why(comparison.quantities)}."
        return drawn_note(reason, colors)
    rows = [_quantity_row(quantity) for quantity in chosen]
    figure = _intervals(rows, colors, _difference(comparison))
    return DrawnFigure(figure, quantities_table(comparison), comparison.summary)


def own_times(comparison: Comparison, colors: Palette) -> DrawnFigure:
    """Draw B minus A of the times inside the parts.

    These are own, blocked and CPU time, and compute, communication and idle time of the profiled steps.
    """
    chosen = [
        quantity
        for quantity in comparison.quantities
        if quantity.role in ("inside", "window") and quantity.unit == "us" and quantity.difference is not None
    ]
    if not chosen:
        return drawn_note("Neither own times nor profiled steps are known of both sides.", colors)
    rows = [_quantity_row(quantity) for quantity in chosen]
    figure = _intervals(rows, colors, _difference(comparison))
    largest = max(rows, key=lambda row: abs(row.difference))
    sentence = f"Largest difference: {largest.name}, {_signed(largest.difference)} ({largest.outcome})."
    return DrawnFigure(figure, quantities_table(comparison), sentence)


def rank_changes(comparison: Comparison, sides: Sequence[Side], colors: Palette, *, by: str) -> DrawnFigure:
    """Draw the change of own time in excess of the peers', per rank, or per host as the mean of its ranks.

    A rank that moved between the runs counts for its host in B: a node swap appears as such a move.
    """
    if not comparison.ranks:
        why = (
            "ranks are compared by number, so not between world sizes"
            if len({side.world_size for side in sides}) > 1
            else "own times are not known, or ranks have no peers that do the same work"
        )
        return drawn_note(f"Ranks cannot be compared: {why}.", colors)
    rows = host_rows(comparison.ranks) if by == "host" else [_rank_row(rank) for rank in comparison.ranks]
    rows.sort(key=lambda row: -abs(row.difference))
    shown = rows[:SHOWN]
    figure = _intervals(shown, colors, f"own time above the peers',<br>{_difference(comparison)}")
    worse = [row.name for row in rows if row.outcome == "worse"]
    more = f" The {SHOWN} that changed most of {len(rows):,} are drawn." if len(rows) > SHOWN else ""
    sentence = f"Slower than before, against their peers: {', '.join(worse[:8]) or 'none'}.{more}"
    if all(row.outcome == "insufficient_data" for row in rows):
        sentence = f"Not enough data to test what changed.{more}"
    return DrawnFigure(figure, _ranks_table(comparison), sentence)


def host_rows(ranks: Sequence[RankShift]) -> list[_DifferenceRow]:
    """Return the mean change of each host's ranks.

    A host is worse if a rank became worse and none better, and vice versa. It is the same only if all its ranks are.
    """
    hosts: dict[str, list[RankShift]] = {}
    for rank in ranks:
        name = rank.host_b or "host not known"
        if rank.host_a and rank.host_a != rank.host_b:
            name = f"{name} (before {rank.host_a})"
        hosts.setdefault(name, []).append(rank)
    rows = []
    for name, members in hosts.items():
        outcomes: set[str] = {rank.outcome for rank in members}
        mean = sum(rank.excess_b_us - rank.excess_a_us for rank in members) / len(members)
        outcome = next((word for word in _OF_HOSTS if word in outcomes), "same")
        rows.append(_DifferenceRow(name, mean, None, None, "mixed" if {"worse", "better"} <= outcomes else outcome))
    return rows


def quantities_table(comparison: Comparison) -> FigureData:
    """Return a table of all quantities with their test results."""
    columns = (
        "quantity", "role", "unit", comparison.a, comparison.b, "difference", "average: low", "average: high",
        "typical: difference", "typical: low", "typical: high", "p value", "outcome", "why",
    )  # fmt: skip
    rows = [
        (
            row.label, row.role, row.unit, row.a, row.b, row.difference, *_of_shift(row.average, "low", "high"),
            *_of_shift(row.typical, "difference", "low", "high", "p_value"), row.outcome, row.why,
        )
        for row in comparison.quantities
    ]  # fmt: skip
    return FigureData(columns, rows)


def _of_shift(shift: Shift | None, *fields: str) -> list[float | None]:
    return [None if shift is None else getattr(shift, field) for field in fields]


def _ranks_table(comparison: Comparison) -> FigureData:
    columns = (
        "rank", *(f"{value} {name}{unit}" for value, unit in (("host in", ""), ("own", " [us]"), ("above peers", " [us]"))
                  for name in (comparison.a, comparison.b)), "phase", "outcome",
    )  # fmt: skip
    fields = "rank", "host_a", "host_b", "own_a_us", "own_b_us", "excess_a_us", "excess_b_us", "phase", "outcome"
    return FigureData(columns, list(map(attrgetter(*fields), comparison.ranks)))


def _quantity_row(quantity: Quantity) -> _DifferenceRow:
    low, high = _of_shift(quantity.average, "low", "high")
    return _DifferenceRow(quantity.label, quantity.difference or 0.0, low, high, quantity.outcome)


def _rank_row(shift: RankShift) -> _DifferenceRow:
    host = f" on {shift.host_b}" if shift.host_b else ""
    low, high = _of_shift(shift.average, "low", "high")
    return _DifferenceRow(f"rank {shift.rank}{host}", shift.excess_b_us - shift.excess_a_us, low, high, shift.outcome)


def _intervals(rows: Sequence[_DifferenceRow], colors: Palette, title: str) -> go.Figure:
    """Draw a mark per row at its difference, with a line from low to high. Colour and shape show the outcome."""
    size, unit = time_unit(max(abs(value) for row in rows for value in (row.difference, row.low, row.high) if value is not None))
    figure = go.Figure()
    looks = {"worse": colors.exposed_communication, "better": colors.compute}
    for group, name in _OUTCOMES.items():
        at = [index for index, row in enumerate(rows) if row.outcome == group]
        if not at:
            continue
        chosen = [rows[index] for index in at]
        figure.add_scatter(
            x=[row.difference / size for row in chosen],
            y=at,
            mode="markers",
            name=name,
            marker={"size": 11, "color": looks.get(group, colors.muted), "symbol": _SYMBOLS[group]},
            error_x={
                "type": "data",
                "visible": any(row.low is not None for row in chosen),
                "symmetric": False,
                "array": [None if row.high is None else (row.high - row.difference) / size for row in chosen],
                "arrayminus": [None if row.low is None else (row.difference - row.low) / size for row in chosen],
                "color": looks.get(group, colors.muted),
                "thickness": 2,
                "width": 5,
            },
            customdata=[(plotly_text(row.name), _interval(row), name) for row in chosen],
            hovertemplate=f"<b>%{{customdata[0]}}</b><br>%{{x:+,.4g}} {unit}, %{{customdata[1]}}"
            "<br>%{customdata[2]}<extra></extra>",
        )
    framed(figure, colors, height=140 + 26 * len(rows))
    legend_above(figure)
    figure.update_xaxes(
        title_text=f"{title}, {unit}", zeroline=True, zerolinecolor=colors.muted, zerolinewidth=2, range=_range(rows, size)
    )
    rows_axis(figure, [plotly_text(row.name, _MOST_LETTERS) for row in rows], showgrid=True)
    return figure


def _range(rows: Sequence[_DifferenceRow], size: float) -> tuple[float, float]:
    """Return the ends of an axis that includes 0, with room for a whole mark at either end."""
    values = [value / size for row in rows for value in (row.difference, row.low, row.high) if value is not None]
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def _difference(comparison: Comparison) -> str:
    b, a = (plotly_text(name, _TITLE_LETTERS) for name in (comparison.b, comparison.a))
    # A narrow screen has no room for two names beside each other.
    between = " " if len(comparison.a) + len(comparison.b) <= _SHORT_NAMES else "<br>"
    return f"{b}{between}minus {a},<br>per {comparison.per}"


def steps_overlay(lines: Sequence[tuple[str, Trend]], colors: Palette, *, at: int | None = None) -> DrawnFigure:
    """Draw the step time of the median rank over the steps, one line per run, each with its longest steps as dots above.

    A dashed line marks the step ``at``, which divides a run.
    """
    curves = [(name, trend, downsample(trend, 0, len(trend.steps))) for name, trend in lines if len(trend.steps)]
    curves = [row for row in curves if np.isfinite(row[2].longest_us).any()]
    if not curves:
        return drawn_note("Step times of these runs are not known.", colors)
    size, unit = time_unit(max(float(np.nanmax(downsampled.longest_us)) for *_, downsampled in curves))
    figure = go.Figure()
    for index, (name, _, downsampled) in enumerate(curves):
        color, label = getattr(colors, _ROLES[index % len(_ROLES)]), plotly_text(name, _LEGEND_LETTERS)
        dash = _DASHES[index % len(_DASHES)]
        hover = f"<b>{label}</b><br>step %{{x}}: %{{y:,.4g}} {unit}"
        line = {"color": color, "width": 2, "dash": dash}
        figure.add_scatter(
            x=downsampled.steps, y=downsampled.wall_us[MEDIAN] / size, mode="lines", name=label, line=line, legendgroup=label,
            hovertemplate=f"{hover}<extra></extra>",
        )  # fmt: skip
        long = downsampled.longest_us > 1.5 * downsampled.wall_us[MEDIAN]
        if long.any():
            mark = {"color": color, "size": 6, "symbol": "circle-open"}
            figure.add_scatter(
                x=downsampled.steps[long], y=downsampled.longest_us[long] / size, mode="markers", marker=mark, showlegend=False,
                legendgroup=label, hovertemplate=f"{hover}, the longest step<extra></extra>",
            )  # fmt: skip
    framed(figure, colors, height=340)
    legend_above(figure)
    if at is not None:
        figure.add_vline(x=at, line={"color": colors.emphasis, "width": 1, "dash": "dash"})
    figure.update_xaxes(title_text="step", showgrid=False, zeroline=False)
    figure.update_yaxes(title_text=unit, rangemode="tozero", zeroline=False)
    rows = [
        (name, int(step), downsampled.steps_per_point, cell(downsampled.wall_us[MEDIAN, at]), cell(downsampled.longest_us[at]))
        for name, _, downsampled in curves
        for at, step in enumerate(downsampled.steps)
    ]
    columns = ("run", "step", "steps", "step time, median rank [us]", "longest step time [us]")
    longest = ", ".join(f"{name} {duration(float(np.nanmax(downsampled.longest_us)))}" for name, _, downsampled in curves)
    return DrawnFigure(figure, FigureData(columns, rows), f"Longest step: {longest}.")


def _interval(row: _DifferenceRow) -> str:
    if row.low is None or row.high is None:
        return "no interval"
    return f"between {_signed(row.low)} and {_signed(row.high)}"


def _signed(us: float) -> str:
    return f"{'-' if us < 0 else '+'}{duration(abs(us))}"


def _why(quantities: Sequence[Quantity]) -> str:
    return next((quantity.why for quantity in quantities if quantity.why), "not one usable step on both sides")
