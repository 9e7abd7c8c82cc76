"""Stragglers in profiled windows: ranks that were last at the matched collectives more often than chance explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import Floats, Numbers, sums
from rankscope.analysis.collectives.waits.blame import Blame, CollectiveWaits
from rankscope.analysis.collectives.waits.savings import Savings
from rankscope.analysis.evidence.step_table.steps import Stored
from rankscope.analysis.inference.judging.excess import excess
from rankscope.analysis.inference.judging.rank_judge import judge_ranks
from rankscope.analysis.inference.judging.significance import LIMIT, Scores, blocks_needed, p_value
from rankscope.analysis.inference.judging.slow_ranks import FIXED, MINIMUM_EFFECT, SlowRanks
from rankscope.analysis.result.analysis import Pattern
from rankscope.analysis.statistics import over_median, t_quantile


@dataclass(frozen=True, slots=True)
class LateTimes:
    """Lateness of the ranks of profiled windows, as own times that differ by it."""

    ranks: list[int]
    steps: list[int]
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
    waits, ranks = blame.waits, len(blame.ranks)
    if not len(waits) or ranks < 2 or window_us <= 0:
        return None
    by_steps = len(blame.steps) >= blocks_needed(ranks)
    members = np.diff(waits.first)
    if by_steps and (members == ranks).all():
        instance, rank = waits.instance, waits.member
        late_us = np.maximum.reduceat(waits.waited_us, waits.first[:-1])[instance] - waits.waited_us
    else:
        # A collective of a part of the ranks delays that part: what counts is the mean over the other ranks.
        instance, rank = waits.gain_of, waits.gain_by
        late_us = waits.gain_us * (members[instance] - 1) / (ranks - 1)
    unit = np.searchsorted(blame.steps, waits.step)[instance] if by_steps else instance
    units = len(blame.steps) if by_steps else len(waits)
    late = sums(unit * ranks + rank, late_us, units * ranks).reshape(units, ranks)
    late *= _exposed_shares(waits, instance, rank, late_us, ranks)
    savings = Savings(blame, blame.ranks, blame.steps) if by_steps else None
    return LateTimes(blame.ranks, blame.steps, np.ascontiguousarray(late.T), window_us / len(late), by_steps, savings)


def _exposed_shares(waits: CollectiveWaits, instance: Numbers, rank: Numbers, late_us: Floats, ranks: int) -> Floats:
    """Return the share of each rank's lateness ``late_us`` at ``instance`` that no compute hid, [ranks].

    It follows from the waits at the collectives, not from those charged to the rank: of several ranks that are late together,
    only the last is charged.
    """
    waited, exposed = (np.add.reduceat(each, waits.first[:-1]) for each in (waits.waited_us, waits.exposed_us))
    share = np.divide(exposed, waited, out=np.ones_like(waited), where=waited > 0)
    late, late_exposed = sums(rank, late_us, ranks), sums(rank, late_us * share[instance], ranks)
    return np.divide(late_exposed, late, out=np.ones_like(late), where=late > 0)


def find_late(blame: Blame, window_us: float, hosts: Mapping[int, str] | None = None) -> SlowRanks | None:
    """Return the ranks that were late beyond chance and at a significant cost, or ``None``; times are per window.

    ``hosts``: host of each rank, where known.
    """
    times = late_times(blame, window_us)
    if times is None:
        return None
    slow = judge_ranks(times, hosts).slow if times.by_steps else _at_collectives(times, blame)
    if slow is None or (times.by_steps and not all_agree(times.own, times.ranks, slow)):
        return None
    units = times.own.shape[1]
    with_delays = times.own[:, times.own.any(axis=0)]
    last = float(np.isin(with_delays.argmax(axis=0), [blame.ranks.index(rank) for rank in slow.ranks]).mean())
    return replace(slow, last_share=last, gain_us=slow.gain_us * units, excess_us=slow.excess_us * units)


FEW_STEPS: Final = 3
"""Number of steps up to which each must show that a rank is slow. Among many ranks, chance seldom takes the same one so often."""


def all_agree(own: Stored, ranks: Sequence[int], slow: SlowRanks) -> bool:
    """Return whether at most ``FEW_STEPS`` steps of ``own`` [ranks, steps] agree; true for more, which may be intermittent."""
    if own.shape[1] > FEW_STEPS:
        return True
    over = excess(own)
    return all(agree(over[ranks.index(rank)], 2) for rank in slow.ranks)


def _at_collectives(times: LateTimes, blame: Blame) -> SlowRanks | None:
    """Return the rank that was late at more collectives than chance explains, in too few steps for a test of steps.

    Collectives of one step depend on each other, so the steps must not contradict.
    """
    total = times.own.sum(axis=1)
    row = int(total.argmax())
    others = np.delete(np.arange(len(total)), row)
    gain = float(over_median(total[row], total[others])) / times.own.shape[1]
    chance = p_value(times.own.T, row)
    if gain < MINIMUM_EFFECT * times.wall_us or chance > LIMIT:
        return None
    steps = _by_step(blame, times.own.T)
    if not agree(over_median(steps[:, row], steps[:, others].T), len(total)):
        return None
    last = times.own.argmax(axis=0) == row
    # By steps, because a rank that is late once in a step is last at one of its many collectives.
    pattern: Pattern = "fixed" if (steps.argmax(axis=1) == row).mean() >= FIXED else "intermittent"
    return SlowRanks([times.ranks[row]], pattern, gain, gain, chance, 1 - chance, float(last.mean()))


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


def late_suspect(blame: Blame, window_us: float) -> int | None:
    """Return the rank that was late at a significant cost, but too rarely to exclude chance; ``None`` without one."""
    times = late_times(blame, window_us)
    suspects = [] if times is None else judge_ranks(times).suspects
    return suspects[0] if suspects else None


def _by_step(blame: Blame, values: Scores) -> Scores:
    """Sum ``values`` [instances, any] per step, [steps, any]; instances need not be ordered by step."""
    steps, position = np.unique(blame.waits.step, return_inverse=True)
    total = np.zeros((len(steps), values.shape[1]))
    np.add.at(total, position, values)
    return total
