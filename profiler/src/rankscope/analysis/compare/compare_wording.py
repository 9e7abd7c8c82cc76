"""Wording of a comparison for people: numbers, and a summary in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankscope.analysis.compare.comparable_steps import ComparableSteps
from rankscope.analysis.compare.compare_result import Per, Quantity, RankShift, Shift

_TIMES: Final = ((1e3, 1.0, "µs"), (1e6, 1e3, "ms"), (7.2e9, 1e6, "s"), (float("inf"), 3.6e9, "h"))
_DIGITS: Final = 4
_CHANGE_DIGITS: Final = 3
"""Digits of a change: the noise of both sides is in it, so its third digit is rarely certain."""
_BYTES: Final = ((2.0**10, 1.0, "B"), (2.0**20, 2.0**10, "KiB"), (2.0**30, 2.0**20, "MiB"), (float("inf"), 2.0**30, "GiB"))


def time(us: float, *, signed: bool = False) -> str:
    """Format a time as ``102.4 ms``, with four digits because compared times are often close; a ``signed`` change has three."""
    return _scaled(us, _TIMES, signed=signed, digits=_CHANGE_DIGITS if signed else _DIGITS)


def rounded_time(us: float) -> str:
    """Format a change without its sign, or an imposed wait, as ``19.8 ms``."""
    return _scaled(us, _TIMES, signed=False, digits=_CHANGE_DIGITS)


def size(count: float, *, signed: bool = False) -> str:
    """Format a number of bytes as ``1.25 GiB``; digits as those of ``time``."""
    return _scaled(count, _BYTES, signed=signed, digits=_CHANGE_DIGITS if signed else _DIGITS)


def rate(per_second: float, *, signed: bool = False) -> str:
    """Format a rate as ``302.5`` or ``12,346``; digits as those of ``time``."""
    sign = "+" if signed else ""
    rounded = float(f"{per_second:.{_CHANGE_DIGITS if signed else _DIGITS}g}")
    return f"{per_second:{sign},.0f}" if abs(rounded) >= 1000 else f"{rounded:{sign}.15g}"


def percent(share: float, *, signed: bool = True) -> str:
    """Format a relative change as ``+15.6%``; a large one as a multiple of the original value: ``12.4x``."""
    if abs(share) >= 10:
        return f"{share + 1:.3g}x"
    return f"{percentage(share, signed=signed)}%"


def exactly(share: float) -> str:
    """Format a share that the user chose: ``1%``, ``0.25%``."""
    return f"{100 * share:.4g}%"


def percentage(share: float, *, signed: bool = True) -> str:
    """Format the number of a percentage without ``%``, in three digits but not more than two after the point."""
    number = 100 * share
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    # Adding 0.0 prevents -0.00 for a small negative number.
    return f"{round(number, digits) + 0.0:{'+' if signed else ''}.{digits}f}"


def _scaled(value: float, table: tuple[tuple[float, float, str], ...], *, signed: bool, digits: int) -> str:
    # The limit is a little lower, because a number that rounds up to a thousand belongs to the next unit.
    divisor, unit = next((divisor, unit) for limit, divisor, unit in table if abs(value) < (1 - 0.5 * 10**-digits) * limit)
    rounded = float(f"{value / divisor:.{digits}g}")
    return f"{rounded:{'+' if signed else ''}.15g} {unit}"


_NAMED: Final = 3
"""Maximum number of parts that are named."""


def summarise(
    a: ComparableSteps,
    b: ComparableSteps,
    step: Quantity,
    quantities: Sequence[Quantity],
    *,
    ranks: Sequence[RankShift],
    hosts: Sequence[str],
    per: Per,
    min_change: float,
) -> tuple[str, str]:
    """Return the answer in one sentence, and a summary that begins with it.

    The summary has the parts in which the change lies, and the rank or host that stands out.
    """
    sentence = _sentence(a.label, b.label, step, per, min_change)
    sentences = [sentence, _addition(step, a.label, b.label)]
    if step.outcome != "insufficient_data":
        sentences += [_where(step, quantities, per), _who(ranks, hosts, per)]
    return sentence, " ".join(text for text in sentences if text)


def _sentence(a: str, b: str, step: Quantity, per: Per, min_change: float) -> str:
    typical, average = step.typical, step.average
    if typical is None or average is None:
        return f"Not enough data to compare {b} with {a}: {step.why}."
    what = "step" if per == "step" else f"step, per {per},"
    if step.outcome == "mixed":
        average_text = _change_text(average)
        return f"Mixed: the typical {what} of {b} {_change_text(typical)} against {a}, while the average step {average_text}."
    if step.outcome in ("worse", "better"):
        word = "slower" if step.outcome == "worse" else "faster"
        decides, name = (typical, "typical") if _decides(typical, step.outcome) else (average, "average")
        return f"{b} is {word} than {a}: the {name} {what} {_change_text(decides)}."
    if step.outcome == "same":
        if typical.real or average.real:
            shift, name = (typical, "typical") if typical.real else (average, "average")
            threshold_text = exactly(min_change)
            change_text = _change_text(shift)
            return f"{b} differs from {a}, but by less than the {threshold_text} that matters: the {name} {what} {change_text}."
        return f"{b} is as fast as {a} within {exactly(min_change)}: the typical {what} {_change_text(typical)}."
    return f"No difference between {b} and {a} that the noise lets through: the typical {what} {_change_text(typical)}."


def _addition(step: Quantity, a: str, b: str) -> str:
    """Return what belongs to the sentence: the size of the effect, or the change that would have been seen."""
    typical = step.typical
    if typical is not None and step.outcome == "undecided":
        detectable_text = (
            percent(typical.detectable / typical.a, signed=False) if typical.a > 0 else rounded_time(typical.detectable)
        )
        return f"A change of {detectable_text} or more would most likely have been seen."
    if typical is None or step.outcome not in ("worse", "better"):
        return ""
    rare = (
        "" if _decides(typical, step.outcome) else "The typical step does not show it: some steps are much slower than others. "
    )
    return rare + _effect(step, a, b)


def _decides(shift: Shift, outcome: str) -> bool:
    return shift.real and (shift.difference > 0) == (outcome == "worse")


def _change_text(shift: Shift) -> str:
    text = f"takes {time(shift.b)} instead of {time(shift.a)}"
    if shift.relative is None or shift.relative_low is None or shift.relative_high is None:
        return text
    return f"{text} ({percent(shift.relative)}, between {percent(shift.relative_low)} and {percent(shift.relative_high)})"


def _effect(step: Quantity, a: str, b: str) -> str:
    if step.superiority is None:
        return ""
    larger = max(step.superiority, 1 - step.superiority)
    return f"In {100 * larger:.0f}% of pairs of their steps, the slower one is {b if step.superiority >= 0.5 else a}'s."


def _where(step: Quantity, quantities: Sequence[Quantity], per: Per) -> str:
    """Name the parts that changed, largest change first."""
    part_changes = [
        (quantity.label, quantity.difference)
        for quantity in quantities
        if quantity.role == "part" and quantity.outcome in ("worse", "better")
    ]
    changes = sorted(
        ((label, change) for label, change in part_changes if change is not None), key=lambda labelled: -abs(labelled[1])
    )
    decided = step.outcome in ("worse", "better", "mixed")
    if not changes:
        return "No single part of the step stands out." if decided else ""
    named = ", ".join(f"{label} {time(change, signed=True)}" for label, change in changes[:_NAMED])
    if not decided or step.difference is None:
        return f"Inside the {per}: {named}."
    return f"The average {per} changes by {time(step.difference, signed=True)}: {named}."


def _who(ranks: Sequence[RankShift], hosts: Sequence[str], per: Per) -> str:
    """Name the host whose ranks became slower, or the rank that slowed down most."""
    slower = [row for row in ranks if row.outcome == "worse"]
    if not slower:
        return ""
    on_host = [row for row in slower if row.host_b in hosts]
    worst = max(on_host or slower, key=_change)
    where = f", in {worst.phase.replace('_', ' ')}" if worst.phase else ""
    if on_host:
        on = [row for row in on_host if row.host_b == worst.host_b]
        by = sum(map(_change, on)) / len(on)
        return f"All ranks of host {worst.host_b} became slower than the others, by {rounded_time(by)} per {per}{where}."
    host = f" on {worst.host_b}" if worst.host_b else ""
    host_change = f" (before on {worst.host_a})" if worst.host_a and worst.host_a != worst.host_b else ""
    text = (
        f"Rank {worst.rank}{host}{host_change} became slower than its peers by {rounded_time(_change(worst))} per {per}{where}."
    )
    if worst.imposed_a_us is None or worst.imposed_b_us is None:
        return text
    imposed = f"{rounded_time(worst.imposed_b_us)} per {per} and waiting rank instead of {rounded_time(worst.imposed_a_us)}"
    return f"{text} Its imposed wait is {imposed}."


def _change(row: RankShift) -> float:
    return row.excess_b_us - row.excess_a_us
