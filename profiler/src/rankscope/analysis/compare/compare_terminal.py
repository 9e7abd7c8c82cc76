"""Render a comparison for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rankscope.analysis.compare.compare_result import (
    CompareResult,
    Comparison,
    Outcome,
    Per,
    Quantity,
    RankShift,
    Role,
    Scaling,
    Side,
    Throughput,
    Unit,
)
from rankscope.analysis.compare.compare_wording import exactly, percent, percentage, rate, rounded_time, size, time
from rankscope.analysis.result.text import CYAN, GREEN, RED, UNKNOWN, YELLOW, aligned, colored, counted, fitting, listing, wrapped
from rankscope.base.text import printable

_SHOWN_RANKS: Final = 8
_DISPENSABLE_OF_RANKS: Final = ("host", "own time")
_LONGEST_COLUMN: Final = 12
"""Maximum length of a name above a column."""
_DISPENSABLE: Final = ("between", "of the step")
"""Columns that are dropped on a narrow terminal, in this order."""
_COLORS: Final[dict[Outcome, str]] = {
    "worse": RED,
    "mixed": YELLOW,
    "better": GREEN,
    "same": GREEN,
    "insufficient_data": YELLOW,
}

_SECTIONS: Final[dict[Role, str]] = {
    "part": "parts of the average {per}, which add up to it",
    "inside": "within these",
    "window": "profiled steps",
    "single": "not tested: one number of each side",
}


def render_compare(result: CompareResult, *, width: int = 100, color: bool = False) -> str:
    """Render the answer, the sides, the tables and the method, in lines of at most ``width`` columns (tables need 80)."""
    blocks = [
        _answer(comparison.outcome, comparison.sentence, comparison.details, width, color)
        for comparison in result.comparisons[:1]
    ]
    if result.scaling is not None:
        blocks.append(_answer(None, result.scaling.summary, "", width, color))
    blocks.append(_sides(result.sides, width))
    for number, comparison in enumerate(result.comparisons):
        if number:
            blocks.append(_answer(comparison.outcome, comparison.sentence, comparison.details, width, color))
        blocks += _details(comparison, width)
    if result.scaling is not None:
        blocks += [_scaling_table(result.scaling, width), _loss_table(result.scaling)]
    blocks.append(_method(result, width))
    return "\n\n".join(block for block in blocks if block)


def _answer(outcome: Outcome | None, sentence: str, details: str, width: int, color: bool) -> str:
    word = "SCALING" if outcome is None else _word(outcome).upper()
    if color:
        word = colored(word, CYAN if outcome is None else _COLORS.get(outcome, CYAN))
    return "\n".join([word, *_wrapped(sentence, width), *(_wrapped(details, width) if details else [])])


def _wrapped(text: str, width: int, *, hanging: str = "") -> list[str]:
    # Paths, hosts and versions come from run directories, which are not trusted.
    return wrapped(printable(text), width, hanging=hanging)


def _sides(sides: Sequence[Side], width: int) -> str:
    lines: list[str] = []
    for side in sides:
        facts = [
            side.path,
            counted(side.world_size, "rank"),
            f"steps {side.steps[0]} to {side.steps[1] - 1}, {side.used_steps} compared",
        ]
        facts += [f"{rate(side.samples_per_s)} samples/s"] if side.samples_per_s is not None else []
        facts += [f"{rate(side.tokens_per_s)} tokens/s"] if side.tokens_per_s is not None else []
        cost = side.cost_per_million_tokens or side.cost_per_million_samples
        if cost is not None:
            unit = "tokens" if side.cost_per_million_tokens is not None else "samples"
            facts.append(f"{cost.amount:.4g} {cost.currency} per million {unit}")
        facts += ["GPU readings SIMULATED"] if side.simulated else []
        lines += _wrapped(f"{side.label}: {' · '.join(facts)}", width, hanging="   ")
        left_out = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in side.left_out.items())
        lines += _wrapped(f"   left out: {left_out}", width, hanging="   ") if left_out else []
        for warning in side.warnings:
            lines += _wrapped(f"   warning: {warning}", width, hanging="     ")
    return "\n".join(lines)


def _details(comparison: Comparison, width: int) -> list[str]:
    differs = listing("also not the same", [printable(text) for text in comparison.differs], width)
    return [differs, _table(comparison, width), _rank_table(comparison.ranks, comparison.per, width)]


def _table(comparison: Comparison, width: int) -> str:
    step = next(quantity for quantity in comparison.quantities if quantity.role == "step")
    rows = [
        ["", _column(comparison.a), _column(comparison.b), "change", "of the step", "between", ""],
        *_step_rows(step, comparison.per),
    ]
    rows += [_throughput_row(throughput) for throughput in comparison.throughput]
    titles: dict[int, str] = {}
    # Profiling makes steps slower, so quantities of profiled steps are shares of the mean profiled step.
    wholes = {"window": next((quantity.a for quantity in comparison.quantities if quantity.name == "window_us"), None)}
    for role, title in _SECTIONS.items():
        section = [_row(quantity, wholes.get(role, step.a)) for quantity in comparison.quantities if quantity.role == role]
        if section:
            titles[len(rows)] = title.format(per=comparison.per)
            rows += section
    rows = fitting(rows, width, _DISPENSABLE)
    lines = aligned(rows, left_columns=(0, len(rows[0]) - 1))
    for at in sorted(titles, reverse=True):
        lines.insert(at, titles[at])
    return "\n".join(lines)


def _column(label: str) -> str:
    """Return the name of a side above its column, which leaves room for the others; its two ends tell runs apart best."""
    text = printable(label)
    return text if len(text) <= _LONGEST_COLUMN else f"{text[: _LONGEST_COLUMN // 2 - 1]}…{text[-_LONGEST_COLUMN // 2 :]}"


def _step_rows(step: Quantity, per: str) -> list[list[str]]:
    shifts = [(name, shift) for name, shift in (("typical", step.typical), ("average", step.average)) if shift is not None]
    if not shifts:
        values = [_value(step.a, "us"), _value(step.b, "us"), _change(step.difference, "us")]
        return [[f"average {per}", *values, UNKNOWN, UNKNOWN, _word(step.outcome)]]
    return [
        [
            f"{name} {per}",
            time(shift.a),
            time(shift.b),
            time(shift.difference, signed=True),
            _percent(shift.relative),
            _interval(shift.relative_low, shift.relative_high),
            _word(step.outcome) if name == "typical" else "",
        ]
        for name, shift in shifts
    ]


def _throughput_row(throughput: Throughput) -> list[str]:
    values = [rate(throughput.a), rate(throughput.b), rate(throughput.b - throughput.a, signed=True)]
    return [
        f"{throughput.unit} per second",
        *values,
        percent(throughput.relative),
        _interval(throughput.relative_low, throughput.relative_high),
        "",
    ]


def _row(quantity: Quantity, step_us: float | None) -> list[str]:
    unit = quantity.unit
    cells = [f"  {quantity.label}", _value(quantity.a, unit), _value(quantity.b, unit), _change(quantity.difference, unit)]
    if quantity.role == "single":
        return [*cells, "", "", ""]
    shift = quantity.average
    low = high = None
    if shift is not None and (reference := 1.0 if unit == "ratio" else step_us):
        low, high = shift.low / reference, shift.high / reference
    return [*cells, _percent(quantity.of_step), _interval(low, high), _word(quantity.outcome)]


def _word(outcome: Outcome) -> str:
    return "not enough data" if outcome == "insufficient_data" else outcome


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else percent(share)


def _interval(low: float | None, high: float | None, *, signed: bool = True) -> str:
    if low is None or high is None:
        return UNKNOWN
    return f"{percentage(low, signed=signed)} … {percentage(high, signed=signed)}%"


def _value(value: float | None, unit: Unit) -> str:
    if value is None:
        return UNKNOWN
    return time(value) if unit == "us" else size(value) if unit == "bytes" else percent(value, signed=False)


def _change(value: float | None, unit: Unit) -> str:
    if value is None:
        return UNKNOWN
    return time(value, signed=True) if unit == "us" else size(value, signed=True) if unit == "bytes" else percent(value)


def _rank_table(ranks: Sequence[RankShift], per: Per, width: int) -> str:
    changed = [row for row in ranks if row.outcome in ("worse", "better", "mixed")]
    if not changed:
        return ""
    changed.sort(key=lambda row: -abs(row.excess_b_us - row.excess_a_us))
    rows = [["rank", "host", "own time", "against its peers", "imposed wait", "phase", ""]]
    for row in changed[:_SHOWN_RANKS]:
        host = row.host_b or UNKNOWN
        if row.host_a and row.host_a != row.host_b:
            host = f"{row.host_a} -> {host}"
        against = time(row.excess_b_us - row.excess_a_us, signed=True)
        word = {"worse": "slower", "better": "faster"}.get(row.outcome, row.outcome)
        own = f"{time(row.own_a_us)} -> {time(row.own_b_us)}"
        imposed = " -> ".join(UNKNOWN if us is None else rounded_time(us) for us in (row.imposed_a_us, row.imposed_b_us))
        rows.append([str(row.rank), printable(host), own, against, imposed, row.phase or UNKNOWN, word])
    rows = fitting(rows, width, _DISPENSABLE_OF_RANKS)
    lines = textwrap.wrap(
        f"ranks whose own time changed against that of the others; imposed wait per {per} and waiting rank", width
    )
    lines += aligned(rows, left_columns=(1, len(rows[0]) - 1))
    if len(changed) > _SHOWN_RANKS:
        lines += textwrap.wrap(f"and {len(changed) - _SHOWN_RANKS} more; --format json has them all", width)
    return "\n".join(lines)


def _scaling_table(scaling: Scaling, width: int) -> str:
    unit = (scaling.work or "work").replace("_", " ")
    rows = [["", "ranks", f"{unit}/s", "speedup", "linear", "efficiency", "between", "per million"]]
    rows += [
        [
            _column(row.label),
            str(row.world_size),
            UNKNOWN if row.per_s is None else rate(row.per_s),
            UNKNOWN if row.speedup is None else f"{row.speedup:.3g}",
            f"{row.linear:.3g}",
            UNKNOWN if row.efficiency is None else percent(row.efficiency, signed=False),
            _interval(row.efficiency_low, row.efficiency_high, signed=False),
            UNKNOWN if row.cost_per_million is None else f"{row.cost_per_million.amount:.4g} {row.cost_per_million.currency}",
        ]
        for row in scaling.rows
    ]
    if all(row[7] == UNKNOWN for row in rows[1:]):
        rows = [row[:7] for row in rows]
    return "\n".join(aligned(fitting(rows, width, ("linear",)), left_columns=(0,)))


def _loss_table(scaling: Scaling) -> str:
    with_losses = [row for row in scaling.rows if row.losses]
    if not with_losses:
        return ""
    names = {loss.name: loss.label for row in with_losses for loss in row.losses}
    rows = [["lost, of the rank-time", *(f"{_column(row.label)} ({row.world_size})" for row in with_losses)]]
    for name, label in names.items():
        shares = [next((loss.share for loss in row.losses if loss.name == name), None) for row in with_losses]
        rows.append([f"  {label}", *(UNKNOWN if share is None else percent(share) for share in shares)])
    return "\n".join(aligned(rows, left_columns=(0,)))


def _method(result: CompareResult, width: int) -> str:
    text = (
        f"All intervals hold at once with {exactly(result.confidence)} confidence. They include the noise between the steps of "
        "these runs. Runs on other nodes, or at another time, also differ for other reasons."
    )
    if result.mode != "scaling":
        text += f" What matters: {exactly(result.min_change)} of the step (--min-change)."
    return "\n".join(_wrapped(text, width))
