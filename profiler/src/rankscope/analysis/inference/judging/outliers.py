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
from rankscope.analysis.inference.judging.significance import (
    LIMIT,
    block_sums,
    gap_p_value,
    looks,
    p_value,
    share_reaching,
    widest_gap,
)
from rankscope.analysis.inference.judging.slow import SlowRanks

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
    tests, so p-values are corrected by ``looks``: of several ranks ahead of the others, then, if that is not certain, of the
    worst rank alone. P-values also account for the other measures, as any of them may name the rank.
    """
    left = np.flatnonzero(~slow)
    best: Outliers | None = None
    for measure in measures:
        able = over[left] >= floor
        if measure.limited:
            able &= mean_excess(own, left, measure.at_most) >= _LIMITED * floor
        most = min(len(own) // 2 - int(slow.sum()), int(able.sum()))
        if most < 1:
            continue
        sums = measure.sums[:, left]
        beside = [other.sums[:, left] for other in measures if other is not measure]
        totals = np.where(able, sums.sum(axis=0), -np.inf)
        order = np.argsort(-totals, kind="stable")
        several, gap = widest_gap(sums.sum(axis=0)[order], most)
        tests: list[tuple[int, Callable[[], float]]] = [
            (several, lambda sums=sums, gap=gap, beside=beside: gap_p_value(sums, gap, beside)),  # type: ignore[misc]
            (1, lambda sums=sums, first=int(order[0]), beside=beside: p_value(sums, first, beside)),  # type: ignore[misc]
        ]
        for count, chance in tests:
            found = Outliers([int(row) for row in left[order[:count]]], min(1.0, looks(len(left)) * chance()), measure)
            if found.p_value <= LIMIT:
                return found
            if best is None or found.p_value < best.p_value:
                best = found
    return best


def by_chance_elsewhere(times: OwnTimes, slow: SlowRanks, others: Sequence[OwnTimes]) -> float:
    """Return the probability that a rank in ``others``, groups without a slow rank, has the excess of the worst of ``slow``.

    Add it to the p-value of ``slow``, as correction for testing several groups.
    """
    if not others:
        return 0.0
    row = times.ranks.index(slow.ranks[0])
    mean = float(mean_excess(times.own, np.arange(len(times.own)))[row])
    return sum(share_reaching(block_sums(excess(one.own).T), mean * one.own.shape[1]) for one in others)
