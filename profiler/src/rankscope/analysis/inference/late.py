"""Stragglers in profiled windows: ranks that were last at the matched collectives more often than chance explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import sums
from rankscope.analysis.collectives.blame import Blame
from rankscope.analysis.collectives.savings import Savings
from rankscope.analysis.evidence.steps import Stored
from rankscope.analysis.inference.cause import Signals, cause_of
from rankscope.analysis.inference.excess import excess
from rankscope.analysis.inference.judge import judge_ranks
from rankscope.analysis.inference.named import Named
from rankscope.analysis.inference.significance import (
    LIMIT,
    Scores,
    blocks_needed,
    p_value,
)
from rankscope.analysis.inference.slow import FIXED, MINIMUM_EFFECT, Slow
from rankscope.analysis.result.analysis import Evidence, Pattern
from rankscope.analysis.statistics import t_quantile
from rankscope.runs.records import StepBreakdown

ENOUGH_STEPS: Final = 8
"""Number of steps below which the answer says that it rests on a few, and is less sure that the slowness lasts."""


@dataclass(frozen=True, slots=True)
class LateTimes:
    """Lateness of the ranks of profiled windows, as own times that differ by it."""

    ranks: list[int]
    own: Scores
    """Lateness in microseconds, [ranks, units]. Units are steps, or collectives where there are too few steps for a test."""
    wall_us: float
    """Time of a unit: the window divided by their number."""
    by_steps: bool
    """True if there are enough steps to be the units."""
    savings: Savings | None


def late_times(blame: Blame, window_us: float) -> LateTimes | None:
    """Return how late each rank was; ``None`` without a collective or a second rank.

    ``window_us``: the typical window over which ``blame`` was summed. Where all collectives have the same ranks, a rank's
    lateness is how much less it waited than the rank that waited most, so several ranks may be late together. Otherwise it is the
    waiting charged to the rank. Waiting that compute hid does not count.
    """
    at, ranks = blame.at, len(blame.ranks)
    if not len(at) or ranks < 2 or window_us <= 0:
        return None
    by_steps = len(blame.steps) >= blocks_needed(ranks)
    members = np.diff(at.first)
    if by_steps and (members == ranks).all():
        instance, rank = at.instance, at.member
        late_us = np.maximum.reduceat(at.waited_us, at.first[:-1])[instance] - at.waited_us
    else:
        # A collective of a part of the ranks delays that part: what counts is the mean over the other ranks.
        instance, rank = at.gain_of, at.gain_by
        late_us = at.gain_us * (members[instance] - 1) / (ranks - 1)
    unit = np.searchsorted(blame.steps, at.step)[instance] if by_steps else instance
    units = len(blame.steps) if by_steps else len(at)
    late = sums(unit * ranks + rank, late_us, units * ranks).reshape(units, ranks)
    exposed = [blame.exposed_us[rank] / imposed if (imposed := blame.imposed_us[rank]) > 0 else 1.0 for rank in blame.ranks]
    savings = Savings(blame, blame.ranks, blame.steps) if by_steps else None
    return LateTimes(blame.ranks, np.ascontiguousarray((late * exposed).T), window_us / len(late), by_steps, savings)


def find_late(blame: Blame, window_us: float) -> Slow | None:
    """Return the ranks that were late beyond chance and at a significant cost, or ``None``; times are per window."""
    times = late_times(blame, window_us)
    if times is None:
        return None
    slow = judge_ranks(times).slow if times.by_steps else _at_collectives(times, blame)
    if slow is None or (times.by_steps and not all_agree(times.own, times.ranks, slow)):
        return None
    units = times.own.shape[1]
    anybody = times.own[:, times.own.any(axis=0)]
    last = float(np.isin(anybody.argmax(axis=0), [blame.ranks.index(rank) for rank in slow.ranks]).mean())
    return replace(slow, last_share=last, gain_us=slow.gain_us * units, excess_us=slow.excess_us * units)


FEW_STEPS: Final = 3
"""Number of steps up to which each must show that a rank is slow. Among many ranks, chance seldom takes the same one so often."""


def all_agree(own: Stored, ranks: Sequence[int], slow: Slow) -> bool:
    """Return whether at most ``FEW_STEPS`` steps of ``own`` [ranks, steps] agree; true for more, which may be intermittent."""
    if own.shape[1] > FEW_STEPS:
        return True
    over = excess(own)
    return all(agree(over[ranks.index(rank)], 2) for rank in slow.ranks)


def _at_collectives(times: LateTimes, blame: Blame) -> Slow | None:
    """Return the rank that was late at more collectives than chance explains, in too few steps for a test of steps.

    Collectives of one step depend on each other, so the steps must not contradict.
    """
    total = times.own.sum(axis=1)
    row = int(total.argmax())
    others = np.delete(np.arange(len(total)), row)
    gain = float(total[row] - np.median(total[others])) / times.own.shape[1]
    chance = p_value(times.own.T, row)
    if gain < MINIMUM_EFFECT * times.wall_us or chance > LIMIT:
        return None
    steps = _by_step(blame, times.own.T)
    if not agree(steps[:, row] - np.median(steps[:, others], axis=1), len(total)):
        return None
    last = times.own.argmax(axis=0) == row
    # By steps, because a rank that is late once in a step is last at one of its many collectives.
    pattern: Pattern = "fixed" if (steps.argmax(axis=1) == row).mean() >= FIXED else "intermittent"
    return Slow([times.ranks[row]], pattern, gain, gain, chance, 1 - chance, float(last.mean()))


def agree(ahead: NDArray[np.float64], ranks: int) -> bool:
    """Return whether all of a few steps show that a rank is late: their mean is far beyond the spread between them.

    ``ahead``: excess of the rank over its peers, [steps]. ``ranks``: number of ranks that any could have been found among.
    """
    if len(ahead) < 2:
        return True
    # Of two steps both must show it: a pause in one of them is no slowness. Their spread is not known well enough to be tested.
    if len(ahead) == 2:
        return bool(ahead.min() >= 0.5 * ahead.mean())
    return bool(ahead.mean() > t_quantile(LIMIT / ranks, len(ahead) - 1) * ahead.std(ddof=1) / np.sqrt(len(ahead)))


def too_few(blame: Blame, window_us: float) -> int | None:
    """Return the rank that was late at a significant cost, but too rarely to exclude chance; ``None`` without one."""
    times = late_times(blame, window_us)
    suspects = [] if times is None else judge_ranks(times).suspects
    return suspects[0] if suspects else None


def _by_step(blame: Blame, values: Scores) -> Scores:
    """Sum ``values`` [instances, any] per step, [steps, any]; instances need not be ordered by step."""
    steps, position = np.unique(blame.at.step, return_inverse=True)
    total = np.zeros((len(steps), values.shape[1]))
    np.add.at(total, position, values)
    return total


def late_signals(late: Slow, breakdowns: Mapping[int, Sequence[StepBreakdown]], blame: Blame, *, steps: int = 1) -> Signals:
    """Return the signals for the cause of the worst late rank: means per step in excess of the median of its peers.

    ``late`` and ``blame`` are sums over ``steps``. ``breakdowns``: of each step, or of the whole window as one step. If the rank
    is late intermittently, they are means of its slow steps: in the others it may be faster for reasons of its own.
    """
    rank = late.ranks[0]
    peers = [time for one, time in blame.transfer_us.items() if one not in late.ranks]
    transfer = blame.transfer_us[rank] - float(np.median(peers)) if peers else None
    slow = slow_steps(late, blame) if steps > 1 else None
    if slow is not None:
        breakdowns = {one: [row for row in rows if row.step in slow] for one, rows in breakdowns.items()}
    return Signals(
        own_us=late.gain_us / steps if slow is None else late.excess_us / len(blame.steps),
        device_busy_us=busy_excess(rank, breakdowns),
        transfer_us=None if transfer is None else transfer / (steps if slow is None else len(slow)),
    )


def slow_steps(late: Slow, blame: Blame) -> frozenset[int] | None:
    """Return the steps in which a rank is late intermittently; ``None`` where it always is, or they are not known."""
    if late.pattern == "fixed" or len(late.affected) != len(blame.steps):
        return None
    return frozenset(step for step, is_slow in zip(blame.steps, late.affected.tolist(), strict=True) if is_slow)


def busy_excess(rank: int, breakdowns: Mapping[int, Sequence[StepBreakdown]]) -> float | None:
    """Return a rank's mean compute and exposed copies per window minus the median of its peers.

    ``None`` where the rank or all its peers lack complete windows.
    """
    busy = {
        one: float(np.mean(known))
        for one, rows in breakdowns.items()
        if (known := [row.compute_us + row.exposed_memcpy_us for row in rows if not row.truncated])
    }
    peers = [value for one, value in busy.items() if one != rank]
    return busy[rank] - float(np.median(peers)) if rank in busy and peers else None


def late_named(
    slow: Slow,
    blame: Blame,
    window_us: float,
    signals: Signals,
    *,
    steps: int = 1,
    seen: str = "step",
    explained: float | None = None,
) -> Named:
    """Describe a rank that was late in windows of ``window_us`` and ``steps`` steps each; times are per step.

    ``seen``: name of the unit that ``blame`` counts, for messages. ``explained``: the share of the communication that ``blame``
    rests on, where known.
    """
    victims = max(1, len(blame.ranks) - len(slow.ranks))
    exposed = max(0.0, sum(blame.exposed_us[rank] for rank in slow.ranks) - _among(slow.ranks, blame))
    saved = Evidence(
        name="saved",
        value=slow.gain_us / steps,
        unit="us",
        detail=f"per {'window' if steps == 1 else 'step'}, had it come with the last of the others",
    )
    last = Evidence(
        name="last",
        value=slow.last_share,
        unit="ratio",
        detail=f"of the {'collectives' if len(blame.steps) < 2 else 'steps'} in which anybody clearly was",
    )
    over = [
        Evidence(name=name, value=value, unit="us", detail="over the median of its peers")
        for name, value in (
            ("device_busy_excess", signals.device_busy_us),
            ("off_cpu_excess", signals.off_cpu_us if signals.sleeps else None),
        )
        if value is not None
    ]
    return Named(
        ranks=slow.ranks,
        pattern=slow.pattern,
        cause=cause_of(signals),
        phase=signals.phase,
        gain_us=slow.gain_us / steps,
        wait_us=exposed / victims / steps,
        step_us=window_us / steps,
        confidence=sure(slow, len(blame.steps), explained=explained),
        group=_where(blame, slow.ranks[0]),
        evidence=[*imposed_evidence(blame, slow.ranks), saved, last, *chance_evidence(slow), *over],
        **few_steps(len(blame.steps), seen, steps),
    )


def _among(ranks: Sequence[int], blame: Blame) -> float:
    """Return the exposed waits of ``ranks`` for each other, in microseconds."""
    rows = (row for of_group in blame.rows.values() for row in of_group.items())
    return sum(exposed for (origin, victim), (_, exposed, _) in rows if origin in ranks and victim in ranks)


def imposed_evidence(blame: Blame, ranks: Sequence[int]) -> list[Evidence]:
    """Return the evidence of how long others waited for ``ranks``; empty where no rank waited."""
    imposed, exposed = (sum(each[rank] for rank in ranks) for each in (blame.imposed_us, blame.exposed_us))
    total = sum(blame.imposed_us.values())
    rows = [
        Evidence(name="imposed_wait", value=imposed, unit="us", detail="summed over the victims"),
        Evidence(name="imposed_wait_exposed", value=exposed, unit="us", detail="the part that no compute hid"),
    ]
    if total > 0:
        rows.append(Evidence(name="imposed_wait_share", value=imposed / total, unit="ratio", detail="of all imposed wait"))
    return rows


def chance_evidence(slow: Slow) -> list[Evidence]:
    """Return the p-value as evidence; empty without one."""
    if slow.p_value is None:
        return []
    return [Evidence(name="p_value", value=slow.p_value, unit="probability", detail="permutation test")]


def sure(slow: Slow, steps: int, *, explained: float | None = None) -> float:
    """Return the confidence in ranks that ``steps`` profiled steps show to be slow.

    ``explained``: share of the communication that the evidence rests on, where known.
    """
    lasts = _lasts(steps, int(slow.affected.sum()) if len(slow.affected) == steps else steps) if steps < ENOUGH_STEPS else 0.99
    return round(min(lasts, 1.0 if explained is None else explained, slow.certainty), 3)


class FewSteps(TypedDict):
    """Texts of ``Named`` that say on how few steps it rests."""

    at_hand: str
    note: str


def few_steps(count: int, seen: str, steps: int) -> FewSteps:
    """Return the texts for evidence of ``count`` units, called ``seen``, of ``steps`` steps each; empty for enough of them."""
    if count >= ENOUGH_STEPS:
        return {"at_hand": "", "note": ""}
    return {"at_hand": _at_hand(count, seen, steps), "note": _FEW.format(needed=ENOUGH_STEPS)}


_FEW: Final = "At least {needed} steps are needed to show whether it lasts."


def _lasts(seen: int, slow: int) -> float:
    """Return the probability that the next step is slow like ``slow`` of ``seen`` steps (Laplace's rule of succession)."""
    return (slow + 1) / (seen + 2)


def _at_hand(count: int, what: str, steps: int) -> str:
    """Return the text for the ``count`` units, named ``what``, that a verdict rests on.

    With several ``steps`` per unit the text marks times as per unit.
    """
    if count < 2:
        return f"in the one {what} at hand"
    return f"per {what} in the {count} at hand" if steps > 1 else f"in the {count} {what}s at hand"


def _where(blame: Blame, rank: int) -> str | None:
    """Return the process group in which others waited most for a rank; ``None`` where there is only one group."""
    waits = {group: sum(row[1] for (origin, _), row in rows.items() if origin == rank) for group, rows in blame.rows.items()}
    return max(waits, key=lambda group: waits[group])[0] if len(waits) > 1 else None
