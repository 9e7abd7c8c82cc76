"""Figures that compare runs: step times, parts of the step, hosts and ranks with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import plotly.graph_objects as go  # type: ignore[import-untyped]

from rankscope.analysis.compare.result import CompareResult, Comparison, Quantity, RankShift, Shift, Side
from rankscope.dashboards.charts.frame import framed, legend_above, note, rows_axis
from rankscope.dashboards.charts.palette import Palette
from rankscope.dashboards.compare.data import PERCENTS, Compared
from rankscope.dashboards.model.drawn import NO_DATA, Drawn, FigureData
from rankscope.dashboards.words.inert import plotly_text
from rankscope.dashboards.words.units import duration, time_unit

_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_ROLES: Final = ("compute", "exposed_communication", "overlap", "exposed_memcpy", "text", "muted")
_SYMBOLS: Final = {"worse": "triangle-right", "better": "triangle-left"}
SHOWN: Final = 40
"""Maximum number of rows in a figure. Its table has all of them."""
_MOST_LETTERS: Final = 36
"""Maximum length of a name at an axis or in a legend. The hover text or the table has all of it."""


def side_name(side: Side) -> str:
    """Return label and name of a side, as ``A: bert``: names alone may be equal."""
    return f"{side.label}: {side.name}"


def step_distributions(compared: Compared, colors: Palette) -> Drawn:
    """Draw the cumulative distribution of step times, one line per side. Lines differ in colour and dash."""
    told = [(side, one) for side, one in zip(compared.result.sides, compared.distributions, strict=True) if one.percentiles_us]
    if not told:
        says = "No side has a usable step: there is nothing to compare."
        return Drawn(note(says, colors), NO_DATA, says)
    size, unit = time_unit(max(one.percentiles_us[99] for _, one in told))
    figure = go.Figure()
    for index, (side, one) in enumerate(told):
        figure.add_scatter(
            x=[value / size for value in one.percentiles_us],
            y=list(PERCENTS),
            mode="lines",
            name=plotly_text(side_name(side), _MOST_LETTERS),
            line={
                "color": getattr(colors, _ROLES[index % len(_ROLES)]),
                "dash": _DASHES[index % len(_DASHES)],
                "width": 2.5,
                "shape": "hv",
            },
            hovertemplate=f"<b>{side.label}</b><br>%{{y}}% of steps take at most %{{x:,.4g}} {unit}<extra></extra>",
        )
    framed(figure, colors, height=340)
    legend_above(figure)
    lowest, highest = min(one.percentiles_us[0] for _, one in told), max(one.percentiles_us[99] for _, one in told)
    room = 0.05 * (highest - lowest) or 0.05 * highest
    # The axis ends at the 99th percentile: one step with a checkpoint would compress all others. The CSV has the rest.
    figure.update_xaxes(title_text=f"step time, {unit}", range=[(lowest - room) / size, (highest + room) / size])
    figure.update_yaxes(title_text="% of steps", range=[0, 101])
    rows = [
        (side.label, side.run_id, percent, value)
        for side, one in told
        for percent, value in zip(PERCENTS, one.percentiles_us, strict=True)
    ]
    medians = ", ".join(f"{side.label} {duration(one.percentiles_us[50])}" for side, one in told)
    return Drawn(figure, FigureData(("side", "run", "percentile [%]", "step time [us]"), rows), f"Median step time: {medians}.")


@dataclass(frozen=True, slots=True)
class _Row:
    """One difference with its interval, in microseconds. Bounds are ``None`` if it was not tested."""

    name: str
    difference: float
    low: float | None
    high: float | None
    outcome: str


def part_differences(comparison: Comparison, colors: Palette) -> Drawn:
    """Draw B minus A for each part of the average step, with its confidence interval. Parts add up to the step's difference."""
    chosen = [one for one in comparison.quantities if one.role in ("step", "part") and one.difference is not None]
    if not chosen:
        says = f"{comparison.b} cannot be compared with {comparison.a}: {_why(comparison.quantities)}."
        return Drawn(note(says, colors), NO_DATA, says)
    rows = [_quantity_row(one) for one in chosen]
    figure = _intervals(rows, colors, f"{comparison.b} minus {comparison.a}, per {comparison.per}")
    return Drawn(figure, quantities_table(comparison), comparison.summary)


def own_times(comparison: Comparison, colors: Palette) -> Drawn:
    """Draw B minus A of the times inside the parts.

    These are own, blocked and CPU time, and compute, communication and idle time of the profiled steps.
    """
    chosen = [
        one
        for one in comparison.quantities
        if one.role in ("inside", "window") and one.unit == "us" and one.difference is not None
    ]
    if not chosen:
        says = "Neither own times nor profiled steps are known of both sides."
        return Drawn(note(says, colors), NO_DATA, says)
    rows = [_quantity_row(one) for one in chosen]
    figure = _intervals(rows, colors, f"{comparison.b} minus {comparison.a}, per {comparison.per}")
    largest = max(rows, key=lambda row: abs(row.difference))
    says = f"Largest difference: {largest.name}, {_signed(largest.difference)} ({largest.outcome})."
    return Drawn(figure, quantities_table(comparison), says)


def rank_changes(comparison: Comparison, sides: Sequence[Side], colors: Palette, *, by: str) -> Drawn:
    """Draw the change of own time in excess of the peers', per rank, or per host as the mean of its ranks.

    A rank that moved between the runs counts for its host in B: a node swap appears as such a move.
    """
    if not comparison.ranks:
        why = (
            "ranks are compared by number, so not between world sizes"
            if len({side.world_size for side in sides}) > 1
            else "own times are not known, or ranks have no peers that do the same work"
        )
        says = f"Ranks cannot be compared: {why}."
        return Drawn(note(says, colors), NO_DATA, says)
    rows = host_rows(comparison.ranks) if by == "host" else []
    if len(rows) < 2:  # a single host has no peers to compare with; its ranks do
        rows = [_rank_row(rank) for rank in comparison.ranks]
    rows.sort(key=lambda row: -abs(row.difference))
    shown = rows[:SHOWN]
    figure = _intervals(shown, colors, f"own time above the peers',<br>{comparison.b} minus {comparison.a}, per {comparison.per}")
    worse = [row.name for row in rows if row.outcome == "worse"]
    more = f" The {SHOWN} that changed most of {len(rows):,} are drawn." if len(rows) > SHOWN else ""
    says = f"Slower than before, against their peers: {', '.join(worse[:8]) or 'none'}.{more}"
    return Drawn(figure, _ranks_table(comparison), says)


def host_rows(ranks: Sequence[RankShift]) -> list[_Row]:
    """Return the mean change of each host's ranks. A host is worse if a rank became worse and none better, and vice versa."""
    hosts: dict[str, list[RankShift]] = {}
    for rank in ranks:
        name = rank.host_b or "host not known"
        if rank.host_a and rank.host_a != rank.host_b:
            name = f"{name} (before {rank.host_a})"
        hosts.setdefault(name, []).append(rank)
    rows = []
    for name, members in hosts.items():
        outcomes = {rank.outcome for rank in members} & {"worse", "better"}
        mean = sum(rank.excess_b_us - rank.excess_a_us for rank in members) / len(members)
        rows.append(_Row(name, mean, None, None, "mixed" if len(outcomes) > 1 else next(iter(outcomes), "same")))
    return rows


def quantities_table(comparison: Comparison) -> FigureData:
    """Return a table of all quantities with their test results."""
    columns = (
        "quantity", "role", "unit", "A", "B", "difference", "average: low", "average: high", "typical: difference",
        "typical: low", "typical: high", "p value", "outcome", "why",
    )  # fmt: skip
    rows = [
        (
            one.label, one.role, one.unit, one.a, one.b, one.difference, *_of_shift(one.average, "low", "high"),
            *_of_shift(one.typical, "difference", "low", "high", "p_value"), one.outcome, one.why,
        )
        for one in comparison.quantities
    ]  # fmt: skip
    return FigureData(columns, rows)


def _of_shift(shift: Shift | None, *fields: str) -> list[float | None]:
    return [None if shift is None else getattr(shift, field) for field in fields]


def _ranks_table(comparison: Comparison) -> FigureData:
    columns = (
        "rank", "host in A", "host in B", "own A [us]", "own B [us]", "above peers A [us]", "above peers B [us]", "phase",
        "outcome",
    )  # fmt: skip
    fields = "rank", "host_a", "host_b", "own_a_us", "own_b_us", "excess_a_us", "excess_b_us", "phase", "outcome"
    return FigureData(columns, list(map(attrgetter(*fields), comparison.ranks)))


def _quantity_row(one: Quantity) -> _Row:
    low, high = _of_shift(one.average, "low", "high")
    return _Row(one.label, one.difference or 0.0, low, high, one.outcome)


def _rank_row(one: RankShift) -> _Row:
    host = f" on {one.host_b}" if one.host_b else ""
    low, high = _of_shift(one.average, "low", "high")
    return _Row(f"rank {one.rank}{host}", one.excess_b_us - one.excess_a_us, low, high, one.outcome)


def _intervals(rows: Sequence[_Row], colors: Palette, title: str) -> go.Figure:
    """Draw a mark per row at its difference, with a line from low to high. Colour and shape show the outcome."""
    size, unit = time_unit(max(abs(value) for row in rows for value in (row.difference, row.low, row.high) if value is not None))
    figure = go.Figure()
    looks = {"worse": colors.exposed_communication, "better": colors.compute}
    for group in ("worse", "better", "other"):
        at = [index for index, row in enumerate(rows) if (row.outcome if row.outcome in looks else "other") == group]
        if not at:
            continue
        chosen = [rows[index] for index in at]
        figure.add_scatter(
            x=[row.difference / size for row in chosen],
            y=at,
            mode="markers",
            name={"worse": "worse", "better": "better"}.get(group, "not significant, or too small"),
            marker={"size": 11, "color": looks.get(group, colors.muted), "symbol": _SYMBOLS.get(group, "circle-open")},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [None if row.high is None else (row.high - row.difference) / size for row in chosen],
                "arrayminus": [None if row.low is None else (row.difference - row.low) / size for row in chosen],
                "color": looks.get(group, colors.muted),
                "thickness": 2,
                "width": 5,
            },
            customdata=[(plotly_text(row.name), _interval(row), row.outcome) for row in chosen],
            hovertemplate=f"<b>%{{customdata[0]}}</b><br>%{{x:+,.4g}} {unit}, %{{customdata[1]}}"
            "<br>%{customdata[2]}<extra></extra>",
        )
    framed(figure, colors, height=120 + 26 * len(rows))
    legend_above(figure)
    figure.update_xaxes(
        title_text=f"{title}, {unit}", zeroline=True, zerolinecolor=colors.muted, zerolinewidth=2, rangemode="tozero"
    )
    rows_axis(figure, [plotly_text(row.name, _MOST_LETTERS) for row in rows], showgrid=True)
    return figure


def _interval(row: _Row) -> str:
    if row.low is None or row.high is None:
        return "no interval"
    return f"between {_signed(row.low)} and {_signed(row.high)}"


def _signed(us: float) -> str:
    return f"{'-' if us < 0 else '+'}{duration(abs(us))}"


def _why(quantities: Sequence[Quantity]) -> str:
    return next((one.why for one in quantities if one.why), "not one usable step on both sides")


def compared_with(result: CompareResult) -> Comparison | None:
    """Return the comparison to draw: the second side with the first. The text covers the others."""
    return result.comparisons[0] if result.comparisons else None
