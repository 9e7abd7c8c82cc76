"""Card with all numbers of one rank in one step, compared with the other ranks."""

from __future__ import annotations

from rankscope.dashboards.data.metrics import METRICS
from rankscope.dashboards.model.page import Block, Line, Link, Rows, Section, Span, Text
from rankscope.dashboards.ranks.data import OneStep, OneValue
from rankscope.dashboards.words.units import duration, shown_unit
from rankscope.dashboards.words.wording import count


def step_card(rank: int, step: int, known: OneStep | None, timeline: str) -> list[Block]:
    """Return a table of the rank's numbers and the median of the ranks. ``timeline``: address of the window's timeline."""
    if known is None:
        body: list[Block] = [Text(f"The run has no record of rank {rank} in step {step:,}.")]
    elif not known.values:
        body = [Text(f"Rank {rank} left no record of step {step:,}.")]
    else:
        body = [_table(known.values), _profiled(known, timeline)]
    help_text = "Beside each number the median of all ranks that told it in this step. Click another cell for another step."
    return [Section(name="step", title=f"Rank {rank} in step {step:,}", help=help_text, blocks=body)]


def _table(values: list[OneValue]) -> Block:
    columns = (("", "head"), ("This rank", ""), ("Median of the ranks", ""), ("Difference", ""))
    rows: list[tuple[Line, ...]] = [
        (
            METRICS[one.metric].label,
            _shown(one.metric, one.value),
            [_shown(one.metric, one.median), Span(f" of {count(one.ranks, 'rank')}", "small")],
            _difference(one),
        )
        for one in values
    ]
    return Rows(columns, rows, "step-numbers")


def _shown(metric: str, value: float) -> str:
    unit = METRICS[metric].unit
    if unit == "us":
        return duration(value) if value else "0 µs"
    size, name = shown_unit(unit, value)
    return f"{value / size:,.4g} {name}"


def _difference(one: OneValue) -> str:
    apart = one.value - one.median
    if apart == 0:
        return "none"
    sign, size = ("+" if apart > 0 else "-"), _shown(one.metric, abs(apart))
    share = f" ({100 * apart / one.median:+,.0f} %)" if one.median and abs(apart / one.median) >= 0.005 else ""
    return f"{sign}{size}{share}"


def _profiled(known: OneStep, timeline: str) -> Block:
    if known.window is None:
        return Text("This step was not profiled: there is no timeline of it.", "help")
    return Text(Link(f"Timeline of the window from step {known.window:,}", timeline))
