"""Outliers among ranks that do the same work: own times longer than chance explains, by the tests of ``significance``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.evidence.step_table.steps import Stored
from rankscope.analysis.inference.judging.excess import Measure, excess, mean_excess
from rankscope.analysis.inference.judging.healing import far_steps
from rankscope.analysis.inference.judging.significance import (
    LIMIT,
    UNCLEAR,
    attainable_p,
    block_sums,
    gap_p_value,
    number_of_tests,
    p_value,
    share_reaching,
    widest_gap,
)
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.statistics import sampled

_LIMITED: Final = 0.5
"""Least mean of the limited excess of a slow rank, in multiples of that of the excess itself: a rank that is slow in half of the
steps has at most half of the limit."""


@dataclass(frozen=True, slots=True)
class Outliers:
    """Ranks whose own time is longer than that of all others."""

    rows: list[int]
    p_value: float
    measure: Measure


def ranks_ahead(
    own: Stored, measures: Sequence[Measure], slow: NDArray[np.bool_], over: NDArray[np.float64], floor: float
) -> Outliers | None:
    """Return the ranks with the widest gap to all others, or else the worst rank, among those not yet known to be ``slow``.

    ``None`` when no rank has a mean excess ``over`` [ranks] of ``floor``, or when no more ranks can be outliers. There are two
    tests, so p-values are corrected by ``number_of_tests``: of several ranks ahead of the others, then, if that is not certain,
    of the worst rank alone. P-values also account for the other measures, as any of them may name the rank.
    """
    candidates = np.flatnonzero(~slow)
    best: Outliers | None = None
    for measure in measures:
        able = over[candidates] >= floor
        if measure.limited:
            able &= mean_excess(own, candidates, measure.at_most) >= _LIMITED * floor
        most = min(len(own) // 2 - int(slow.sum()), int(able.sum()))
        if most < 1:
            continue
        sums = measure.sums[:, candidates]
        other_sums = [other.sums[:, candidates] for other in measures if other is not measure]
        totals = np.where(able, sums.sum(axis=0), -np.inf)
        order = np.argsort(-totals, kind="stable")
        several, gap = widest_gap(sums.sum(axis=0)[order], most)
        tests: list[tuple[int, Callable[[], float]]] = [
            (several, lambda sums=sums, gap=gap, other_sums=other_sums: gap_p_value(sums, gap, other_sums)),  # type: ignore[misc]
            (1, lambda sums=sums, first=int(order[0]), other_sums=other_sums: p_value(sums, first, other_sums)),  # type: ignore[misc]
        ]
        for count, chance in tests:
            rows = [int(row) for row in candidates[order[:count]]]
            p = min(1.0, number_of_tests(len(candidates)) * chance())
            if p <= LIMIT:
                p = max(p, _chance_of_few_steps(own, rows, candidates[order[count:]], measure))
            outliers = Outliers(rows, p, measure)
            if outliers.p_value <= LIMIT:
                return outliers
            if best is None or outliers.p_value < best.p_value:
                best = outliers
    return best


def _chance_of_few_steps(own: Stored, rows: Sequence[int], others: NDArray[np.intp], measure: Measure) -> float:
    """Return the chance that the few steps in which a rank is slow all fall on the same rank; 0 where it is slow in most steps.

    Permutations alone say less: where a rank pauses twice, the noise in its other steps, however small, decides which of them
    reach its total. Of several ``rows``, the one that is slow most rarely counts. The result is at most ``UNCLEAR``: what
    permutations exclude remains a suspicion.
    """
    usual = np.median(own[sampled(others)], axis=0)
    slow_steps = min((far_steps(np.minimum(own[row] - usual, measure.at_most)) for row in rows), key=np.count_nonzero)
    if slow_steps.mean() >= _MOST_STEPS:
        return 0.0
    ranks = len(rows) + len(others)
    return min(UNCLEAR, number_of_tests(ranks) * attainable_p(int(slow_steps.sum()), ranks))


_MOST_STEPS: Final = 0.75
"""Share of the steps from which a rank is slow in all of them but for noise."""


def by_chance_elsewhere(times: OwnTimes, slow: SlowRanks, others: Sequence[OwnTimes]) -> float:
    """Return the probability that a rank in ``others``, groups without a slow rank, has the excess of the worst of ``slow``.

    Add it to the p-value of ``slow``, as correction for testing several groups.
    """
    if not others:
        return 0.0
    row = times.ranks.index(slow.ranks[0])
    mean = float(mean_excess(times.own, np.arange(len(times.own)))[row])
    return sum(share_reaching(block_sums(excess(group_times.own).T), mean * group_times.own.shape[1]) for group_times in others)
