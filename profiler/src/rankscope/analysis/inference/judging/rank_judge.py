"""The judge: which ranks or hosts make the others wait, by own times of ranks that do the same work.

Collectives equalise the wall times of ranks, but not their own times: the other ranks wait for the one with the longest own time.
Every source of own times is judged here, by the same rules, in this order:

1. Which ranks have a longer own time than chance explains (``significance``)?
2. Which hosts, that is the longest own time of their ranks at each step? So ranks of a host that are slow in turn are found.
3. What does healing all of them save, with its interval? They are named if its lower bound is ``MINIMUM_EFFECT`` of the step.
4. Else: which ranks are suspects, and what is the most that any rank or host costs?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.evidence.order import leaders, ordered
from rankscope.analysis.evidence.step_table.steps import Matrix, Stored
from rankscope.analysis.inference.judging.excess import Measure, excess, mean_excess, measures_of
from rankscope.analysis.inference.judging.healing import Gain, as_in_other_steps, far_steps, gain_of, rows_by_host, taking_part
from rankscope.analysis.inference.judging.noise import noise_of
from rankscope.analysis.inference.judging.outliers import Outliers, ranks_ahead
from rankscope.analysis.inference.judging.significance import LIMIT, UNCLEAR, blocks_needed
from rankscope.analysis.inference.judging.slow_ranks import FIXED, MINIMUM_EFFECT, SlowRanks
from rankscope.analysis.result.analysis import Pattern
from rankscope.analysis.statistics import FEWEST_BATCHES, Estimate, mean_of, t_quantile

LEVEL: Final = 0.95
"""Probability with which an interval of savings holds the true one."""

FAR: Final = 0.3
"""Minimum share of steps with large excess of a rank with pattern ``fixed``; below, it is intermittent even if usually last."""

_WAITED_FOR: Final = 0.1
"""Minimum wait that a rank named beside others imposes, as a share of the mean over these ranks."""


@dataclass(frozen=True, slots=True)
class SuspectedRanks:
    """Ranks that would be named if chance could be excluded, with the evidence against the worst of them."""

    ranks: list[int]
    longer: int
    """Number of steps in which its own time was longer than the median of its peers."""
    far: int
    """Number of steps with large excess."""
    needed: int | None
    """Number of such steps that would be enough; ``None`` where there are as many already."""
    excess_us: float
    """Mean excess per step."""
    p_value: float
    gain: Estimate
    """Time that healing these ranks saves per step."""
    steps_needed: float | None
    """Number of steps after which they would usually be named if their excess stays the same; ``None``: no estimate."""


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """Answer of the judge: ranks at fault, or suspects, or neither."""

    slow: SlowRanks | None
    suspect: SuspectedRanks | None
    """Ranks that may be slow; only where none are."""
    at_most_us: float
    """Upper bound of the time per step that any single rank or host costs beyond chance; only without ``slow``."""
    sure_of_none: float
    """Probability that no single rank or host costs ``MINIMUM_EFFECT`` of the step."""

    @property
    def suspects(self) -> list[int]:
        """Slow ranks, or those that may be, worst first: for evidence that needs more than this test."""
        return self.slow.ranks if self.slow is not None else self.suspect.ranks if self.suspect is not None else []

    @property
    def suspected_us(self) -> float:
        """Mean excess of the worst of ``suspects``; 0 without any."""
        return self.slow.excess_us if self.slow is not None else self.suspect.excess_us if self.suspect is not None else 0.0


def judge_ranks(times: OwnTimes, hosts: Mapping[int, str] | None = None) -> GroupAnswer:
    """Judge ranks that do the same work. ``hosts``: host of each rank, where known."""
    case = _JudgedTimes(times, hosts or {})
    tested = [*case.slow_ranks(), *case.slow_hosts()]
    named = case.name_slow_ranks(tested)
    if named is not None:
        return GroupAnswer(named, None, 0.0, 0.0)
    suspect = case.suspect()
    at_most, sure = case.excluded()
    return GroupAnswer(None, suspect, at_most, sure)


class _JudgedTimes:
    """Own times of comparable ranks, and the steps of a judgement on them."""

    def __init__(self, times: OwnTimes, hosts: Mapping[int, str]) -> None:
        self.times = times
        self.own = times.own
        self.ranks = times.ranks
        self.limit = MINIMUM_EFFECT * times.wall_us
        self.noise = noise_of(self.own)
        self.blocks = self.noise.blocks
        self.measures = measures_of(self.own, self.limit, self.blocks)
        self.excess = mean_excess(self.own, np.arange(len(self.own)))
        """Mean excess of each rank, [ranks]."""
        self.hosts = rows_by_host(self.ranks, hosts)

    def slow_ranks(self) -> list[Outliers]:
        """Return the ranks whose excess chance does not explain, most significant first."""
        outliers: list[Outliers] = []
        slow = np.zeros(len(self.own), dtype=bool)
        while (ahead := ranks_ahead(self.own, self.measures, slow, self.excess, self.limit)) is not None:
            if ahead.p_value > LIMIT:
                break
            outliers.append(ahead)
            slow[ahead.rows] = True
        self.slow = slow
        return outliers

    def slow_hosts(self) -> list[Outliers]:
        """Return the ranks of hosts that are slow although no single rank is: their ranks are slow one after the other."""
        rows_by_host = {
            host: [row for row in rows if not self.slow[row]]
            for host, rows in self.hosts.items()
            if 2 * self.slow[rows].sum() < len(rows)
        }
        rows_by_host = {host: rows for host, rows in rows_by_host.items() if len(rows) > 1}
        if len(rows_by_host) < 2:
            return []
        own = _longest(self.own, list(rows_by_host.values()))
        floor = np.zeros(len(own), dtype=bool)
        measures = measures_of(own, self.limit, self.blocks)
        # A host whose ranks pause at different steps is slower, but costs no more than its ranks are slower themselves.
        longer = np.array([(self.excess[rows] - np.median(self.excess)).sum() for rows in rows_by_host.values()])
        over = np.minimum(mean_excess(own, np.arange(len(own))), longer)
        outliers = []
        while (ahead := ranks_ahead(own, measures, floor, over, self.limit)) is not None and ahead.p_value <= LIMIT:
            floor[ahead.rows] = True
            rows = [row for at in ahead.rows for row in taking_part(self.excess, list(rows_by_host.values())[at])]
            outliers.append(Outliers(rows, ahead.p_value, self.measures[-1]))
        for host_outliers in outliers:
            self.slow[host_outliers.rows] = True
        return outliers

    def name_slow_ranks(self, tested: Sequence[Outliers]) -> SlowRanks | None:
        """Return the slow ranks if healing them saves enough; without those tested last that take away the certainty."""
        waited_for, behind = self._waited_for(tested)
        for count in range(len(waited_for), 0, -1):
            slow = self._slow(waited_for[:count], behind)
            if slow is not None:
                return slow
        return None

    def _waited_for(self, outliers: Sequence[Outliers]) -> tuple[list[Outliers], list[int]]:
        """Return the ``outliers`` for which the others wait, and the rows of the rest: a slower rank comes after them."""
        rows = [row for ahead in outliers for row in ahead.rows]
        if len(rows) < 2 or self.times.savings is not None:
            return list(outliers), []
        leading = leaders(self.own)
        waits = leading.largest - self.own.mean(axis=0, dtype=np.float64)
        imposed = np.bincount(leading.rows, weights=waits, minlength=len(self.own))
        behind = [row for row in rows if imposed[row] < _WAITED_FOR * imposed[rows].mean()]
        waited_for = [
            replace(ahead, rows=ahead_rows)
            for ahead in outliers
            if (ahead_rows := [row for row in ahead.rows if row not in behind])
        ]
        return waited_for, behind

    def _slow(self, outliers: Sequence[Outliers], behind: Sequence[int]) -> SlowRanks | None:
        rows, whole_hosts = self._with_hosts([row for ahead in outliers for row in ahead.rows])
        rows.sort(key=lambda row: -self.excess[row])
        slow = np.zeros(len(self.own), dtype=bool)
        slow[rows] = True
        gain = gain_of(self.times, slow)
        p = max(ahead.p_value for ahead in outliers)
        estimate = self._estimate(gain, slow, outliers[0].measure)
        low, high = estimate.bounds(LEVEL)
        steps = self.own.shape[1]
        # What happened in one step alone is no slowness.
        if steps > 1 and (gain.saved.sum() - gain.saved.max()) / steps < self.limit:
            return None
        if (low if steps >= FEWEST_BATCHES else estimate.mean) < self.limit:
            return None
        over_usual, slow_steps = self._slow_steps(rows, slow, outliers[0].measure)
        limited = outliers[0].measure.limited
        often = max(float(gain.last.mean()), float(slow_steps.mean()) if limited else 0.0)
        pattern: Pattern = "fixed" if often >= FIXED and slow_steps.mean() >= FAR else "intermittent"
        affected = gain.last if pattern == "fixed" and not limited else slow_steps
        return SlowRanks(
            ranks=[self.ranks[row] for row in rows],
            hosts=whole_hosts,
            pattern=pattern,
            gain_us=gain.mean_us,
            gain_low_us=max(0.0, low) if steps >= FEWEST_BATCHES else None,
            gain_high_us=high if steps >= FEWEST_BATCHES else None,
            excess_us=float(over_usual[affected].mean()) if affected.any() else 0.0,
            p_value=p,
            certainty=(1 - p) * (1 - estimate.chance_below(self.limit) if steps >= FEWEST_BATCHES else 1.0),
            last_share=float(gain.last.mean()),
            affected=affected,
            behind=[self.ranks[row] for row in behind],
        )

    def _estimate(self, gain: Gain, slow: NDArray[np.bool_], measure: Measure) -> Estimate:
        """Return the mean saving in the recorded steps. Its error is that of the mean excess of a rank that is not slow.

        When and how often the ranks were slow is no error: it is what happened. ``measure``: the one by which they are slow.
        """
        others = np.flatnonzero(~slow)
        noise = noise_of(self.own, measure.at_most) if measure.limited else self.noise
        if len(self.own) == 2:
            # Both ranks' excess shows the slow steps, which are no noise.
            row = int(slow.argmax())
            over = self.own[row].astype(np.float64) - self.own[1 - row]
            usual = as_in_other_steps(over, -over[None])
            if usual is not None:
                noise = noise_of(np.stack([usual, np.zeros(len(usual))]))
        error, freedom = noise.error_of_mean(slow)
        if math.isinf(error) and len(others) > _LEAST_OTHERS and gain.estimated == 1.0:
            error, freedom = _error_by_ranks(self.excess[others], len(self.own))
        error *= math.sqrt(gain.estimated)
        # Ranks that are compared with their own other steps may always differ a little.
        if len(others) >= _ENOUGH_RANKS and gain.estimated == 1.0:
            means = self.excess[others]
            error = max(error, 1.4826 * float(np.median(np.abs(means - np.median(means)))))
        return Estimate(float(gain.saved.mean()), error, freedom)

    def _with_hosts(self, rows: list[int]) -> tuple[list[int], list[str]]:
        """Return the rows with those that take part on a host most of whose ranks are slow, and these hosts."""
        whole_hosts = self._whole_hosts(set(rows))
        taking_part_rows = set(rows).union(*(taking_part(self.excess, self.hosts[host]) for host in whole_hosts))
        return sorted(taking_part_rows), whole_hosts

    def _whole_hosts(self, slow: set[int]) -> list[str]:
        """Return the hosts most of whose ranks are slow, and more than chance puts there if slow ranks are placed at random."""
        most = {host: rows for host, rows in self.hosts.items() if 2 * len(slow & set(rows)) > len(rows)}
        every = {host for host, rows in most.items() if len(taking_part(self.excess, rows)) == len(rows)}
        rank_count = sum(len(self.hosts[host]) for host in every)
        if 2 * rank_count > len(slow):
            return sorted(most)
        return [
            host
            for host, rows in sorted(most.items())
            if len(self.hosts) * _chance_of_overlap(len(self.own), len(slow), len(rows), len(slow & set(rows))) <= UNCLEAR
        ]

    def _slow_steps(
        self, rows: list[int], slow: NDArray[np.bool_], measure: Measure
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the excess of the longest of ``rows`` over the usual rank, and the steps that make up most of it, [steps]."""
        others = np.flatnonzero(~slow)
        usual = ordered(self.own, [(len(others) - 1) // 2, len(others) // 2], others).mean(axis=0, dtype=np.float64)
        longest = self.own[rows[0]] if len(rows) == 1 else self.own[rows].max(axis=0)
        over = longest - usual
        return over, far_steps(np.minimum(over, measure.at_most))

    def suspect(self) -> SuspectedRanks | None:
        """Return ranks that may cost enough to be named, but in too few steps to exclude chance; ``None`` without any."""
        steps = self.own.shape[1]
        no_rank = np.zeros(len(self.own), dtype=bool)
        ahead = ranks_ahead(self.own, self.measures, no_rank, self.excess, self.limit)
        if ahead is None:
            return None
        slow = no_rank.copy()
        slow[ahead.rows] = True
        gain = gain_of(self.times, slow)
        estimate = self._estimate(gain, slow, ahead.measure)
        if estimate.mean < self.limit:
            return None
        needed = blocks_needed(len(self.own))
        over = excess(self.own)[ahead.rows[0]]
        outlying_steps = far_steps(over)
        # What happened in one step alone makes no suspect.
        if steps > 1 and outlying_steps.sum() < 2:
            return None
        if ahead.p_value > UNCLEAR and min(steps, self.blocks) >= needed:
            return None
        reach = estimate.reach((1 - LEVEL) / 2) / max(estimate.mean - self.limit, 1e-9)
        outlying_count = int(outlying_steps.sum())
        multiple = max(needed / max(1, outlying_count) if outlying_count < needed else _LEAST_MORE, reach**2)
        return SuspectedRanks(
            ranks=[self.ranks[row] for row in ahead.rows],
            longer=int((over > 0).sum()),
            far=outlying_count,
            needed=needed if outlying_count < needed else None,
            excess_us=float(self.excess[ahead.rows[0]]),
            p_value=ahead.p_value,
            gain=estimate,
            steps_needed=max(multiple * steps, float(needed)) if multiple <= _MOST_MORE else None,
        )

    def excluded(self) -> tuple[float, float]:
        """Return the most that any single rank or host costs per step beyond chance, and how sure none costs enough."""
        bounds, sure = _largest_cost(self.own, self.limit)
        if len(self.hosts) > 1:
            of_hosts, sure_of_hosts = _largest_cost(_longest(self.own, list(self.hosts.values())), self.limit)
            return max(bounds, of_hosts), sure * sure_of_hosts
        return bounds, sure


_LEAST_MORE: Final = 1.5
"""Least multiple of the steps that is estimated: as many were not enough."""

_MOST_MORE: Final = 10.0
"""Largest multiple of the steps up to which an estimate of the steps that are needed is meaningful."""


def _error_by_ranks(means: NDArray[np.float64], ranks: int) -> tuple[float, float]:
    """Return the error of the mean of a rank, by the ``means`` of the others, and its degrees of freedom.

    Noise that lasts as long as the steps moves each rank's mean once. As the rank is the farthest of all ``ranks``, the interval
    of ``LEVEL`` is as wide as that of ``LIMIT`` for each of them.
    """
    freedom = len(means) - 1.0
    wider = t_quantile(LIMIT / ranks, freedom) / t_quantile((1 - LEVEL) / 2, freedom)
    return wider * float(means.std(ddof=1)) * math.sqrt(1 + 1 / len(means)), freedom


_LEAST_OTHERS: Final = 2
"""Number of ranks that are not slow up to which their means do not show how far noise moves a mean."""

_ENOUGH_RANKS: Final = 5
"""Number of ranks that are not slow from which the spread of their means also shows how far noise that lasts moves a mean."""


def _chance_of_overlap(ranks: int, slow: int, on_host: int, least: int) -> float:
    """Return the chance that at least ``least`` of ``slow`` ranks, placed at random, are on a host (hypergeometric)."""
    ways = sum(comb(on_host, count) * comb(ranks - on_host, slow - count) for count in range(least, min(on_host, slow) + 1))
    return ways / comb(ranks, slow)


def _longest(own: Stored, groups: Sequence[Sequence[int]]) -> Matrix:
    """Return the longest own time of each group of rows, [groups, steps].

    Of larger groups it is the mean over the longest of all their parts that are as large as the smallest group: else groups would
    differ by their size alone.
    """
    size = min(len(rows) for rows in groups)
    result = np.empty((len(groups), own.shape[1]))
    for at, rows in enumerate(groups):
        count = len(rows)
        if count == size:
            result[at] = own[rows].max(axis=0)
            continue
        weights = np.array([comb(place, size - 1) for place in range(count)], dtype=np.float64) / comb(count, size)
        result[at] = weights @ np.sort(own[rows], axis=0)
    return result


def _largest_cost(own: Stored, limit: float) -> tuple[float, float]:
    """Return the upper bound of what any row costs per step beyond a typical row, and how sure none costs ``limit``."""
    leading = leaders(own)
    count, steps = own.shape
    each = np.bincount(leading.rows, weights=leading.ahead, minlength=count) / steps
    usual = float(np.median(each)) if count > 2 else float(each.min())
    # Only the costliest can have the largest bound or doubt.
    most, sure = 0.0, 1.0
    for row in np.argsort(-each)[:_COSTLIEST].tolist():
        series = np.where(leading.rows == row, leading.ahead, 0.0)
        series = own[row].astype(np.float64) - own[1 - row] if count == 2 else series - usual
        estimate = mean_of(series)
        most = max(most, estimate.mean + estimate.reach((1 - LEVEL) / 2))
        sure *= estimate.chance_below(limit)
    return most, sure


_COSTLIEST: Final = 8
