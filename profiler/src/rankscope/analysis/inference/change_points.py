"""Change points of a series: steps from which it stays higher or lower than before.

Binary segmentation tests the most likely change against chance, then searches the parts before and after it in the same way.
Where there is no such change, it tests the most likely stretch that differs from both its sides: a slowdown that ends hides its
own begin. The statistic is the cumulative sum of the values' ranks, so single slow steps count little. Chance is estimated by
shuffling blocks of consecutive steps, so noise that lasts for several steps is no change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LEAST_SHARE: Final = 0.05
"""Smallest change that is reported, as a share of the value before it."""
LEAST_STEPS: Final = 8
"""Smallest number of steps between two changes: anything shorter is a slow moment, not a change."""
LIMIT: Final = 0.001
"""Largest p-value of a change. Stricter than for ranks, because a run is searched repeatedly."""

_MOST_VALUES: Final = 512
"""A longer series is first searched as at most this many medians; the place is then refined among the values themselves."""
_BLOCKS: Final = 20
_DRAWS: Final = 1999
_AT_ONCE: Final = 200
_SEED: Final = 20_240_229
"""Fixed, so that the same run always gets the same answer."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Lasting change of a series."""

    at: int
    """Index of the first value after the change."""
    before: float
    """Median of the values since the previous change, or since the begin."""
    after: float
    """Median of the values up to the next change, or to the end."""


def change_points(series: NDArray[np.floating[Any]]) -> list[ChangePoint]:
    """Return the lasting changes of ``series`` [steps], ascending; NaN values are unknown and left out."""
    finite = np.flatnonzero(np.isfinite(series))
    values = series[finite].astype(np.float64)
    wide = max(1, -(-len(values) // _MOST_VALUES))
    # Each median covers the same number of values; the few left over at the end count in ``_exact``.
    coarse = np.median(values[: len(values) // wide * wide].reshape(-1, wide), axis=1)
    exact_cuts = [_exact(values, cut * wide, wide) for cut in _cuts(coarse, max(2, -(-LEAST_STEPS // wide)))]
    cuts = _without_small_changes(values, exact_cuts)
    medians = _medians(values, cuts) if cuts else []
    return [ChangePoint(int(finite[cut]), before, after) for cut, (before, after) in zip(cuts, pairwise(medians), strict=True)]


def _cuts(values: Values, least: int) -> list[int]:
    """Return where ``values`` change beyond chance; each part between changes has at least ``least`` values."""
    cuts_found: list[int] = []
    to_cut = [(0, len(values))]
    while to_cut:
        first, last = to_cut.pop()
        if last - first < 2 * least:
            continue
        cuts = _most_likely(values[first:last], least)
        cuts_found += [first + cut for cut in cuts]
        if cuts:
            to_cut += pairwise([first, *(first + cut for cut in cuts), last])
    return sorted(cuts_found)


def _most_likely(values: Values, least: int) -> list[int]:
    """Return the most likely change; if chance explains it, begin and end of the most likely stretch; else an empty list."""
    ranks = _ranks(values)
    sums = np.cumsum(ranks)[:-1]
    for statistic, cuts in (
        (_farthest_apart, [least + int(_mean_distances(ranks[None], least)[0].argmax())]),
        (_range, sorted((int(sums.argmin()) + 1, int(sums.argmax()) + 1))),
    ):
        edges = [0, *cuts, len(values)]
        if all(last - first >= least for first, last in pairwise(edges)) and _beyond_chance(ranks, least, statistic):
            return cuts
    return []


def _beyond_chance(ranks: Values, least: int, statistic: Callable[[Values, int], Values]) -> bool:
    long = max(1, len(ranks) // _BLOCKS)
    # All blocks have the same number of values; the surplus is dropped at the begin, where warm-up is.
    used = ranks[len(ranks) % long :]
    blocks = used.reshape(-1, long)
    observed = float(statistic(ranks[None], least)[0])
    if observed <= 0:
        return False
    reached = 0
    rng = np.random.default_rng(_SEED)
    for first in range(0, _DRAWS, _AT_ONCE):
        order = rng.permuted(np.tile(np.arange(len(blocks)), (min(_AT_ONCE, _DRAWS - first), 1)), axis=1)
        drawn = blocks[order].reshape(len(order), -1)
        reached += int((statistic(drawn, least) >= observed * (1 - 1e-12)).sum())
        if (1 + reached) / (1 + _DRAWS) > LIMIT:
            return False
    return True


def _ranks(values: Values) -> Values:
    """Return the ranks of ``values``, minus their mean; equal values share a rank."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks: Values = middle[at] - (len(values) + 1) / 2
    return ranks


def _mean_distances(ranks: Values, least: int) -> Values:
    """Return the distance of the means before and after each place, over their scatter: [draws, values] to [draws, places]."""
    count = ranks.shape[1]
    places = np.arange(least, count - least + 1)
    sums: Values = np.cumsum(ranks, axis=1)[:, least - 1 : count - least]
    distance: Values = np.abs(sums) / np.sqrt(places * (count - places) / count)
    return distance


def _farthest_apart(ranks: Values, least: int) -> Values:
    """Return the largest distance of ``_mean_distances`` per draw, [draws]."""
    largest: Values = _mean_distances(ranks, least).max(axis=1)
    return largest


def _range(ranks: Values, _least: int) -> Values:
    """Return the range of the cumulative sum per draw, [draws]: large where a stretch differs from both its sides."""
    sums = np.cumsum(ranks, axis=1)
    wide: Values = sums.max(axis=1) - sums.min(axis=1)
    return wide


def _exact(values: Values, about: int, wide: int) -> int:
    """Return the place near ``about`` at which the values before and after it are closest to their medians."""
    if wide == 1:
        return about
    first, last = max(0, about - 4 * wide), min(len(values), about + 4 * wide)
    nearby = values[first:last]
    middle = about - first
    low, high = float(np.median(nearby[:middle])), float(np.median(nearby[middle:]))
    # Cumulative cost of moving values to the other side: its minimum is the best place.
    costs = np.cumsum(np.abs(nearby - low) - np.abs(nearby - high))
    within = slice(max(0, middle - wide - 1), middle + wide)
    return first + within.start + int(costs[within].argmin()) + 1


def _without_small_changes(values: Values, cuts: list[int]) -> list[int]:
    """Remove cuts with a change below ``LEAST_SHARE``, the smallest first."""
    while cuts:
        shares = [abs(after - before) / abs(before) if before else np.inf for before, after in pairwise(_medians(values, cuts))]
        smallest = int(np.argmin(shares))
        if shares[smallest] >= LEAST_SHARE:
            break
        cuts = [*cuts[:smallest], *cuts[smallest + 1 :]]
    return cuts


def _medians(values: Values, cuts: list[int]) -> list[float]:
    """Return the median of each part between ``cuts``."""
    return [float(np.median(values[first:last])) for first, last in pairwise([0, *cuts, len(values)])]


def moved_with(before: NDArray[np.floating[Any]], after: NDArray[np.floating[Any]], change: float) -> NDArray[np.intp]:
    """Return the rows of ranks whose median moved by at least half of ``change`` in its direction.

    ``before`` and ``after`` are own times [ranks, steps] on either side of a change of the step time. Ranks without values on
    both sides are left out.
    """
    both: NDArray[np.intp] = np.flatnonzero(np.isfinite(before).any(axis=1) & np.isfinite(after).any(axis=1))
    shifts = np.nanmedian(after[both], axis=1) - np.nanmedian(before[both], axis=1)
    ranks_moved: NDArray[np.intp] = both[shifts * np.sign(change) >= abs(change) / 2]
    return ranks_moved
