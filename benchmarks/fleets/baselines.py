"""Simple ways to find slow ranks, for comparison: what a user would build, or take from a paper. Measures nothing by itself.

Each gets recorded times [ranks, steps] in microseconds, NaN where a record is missing, and returns the ranks that it names, the
worst first. All ignore differences below 5 % of the step, as rankscope does: without that, they would name more healthy ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_SHARE: Final = 0.05
"""Share of the step below which a difference is ignored."""
SIGMAS: Final = 3.0
NORMAL_MAD: Final = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""


def _means(times: Floats) -> Floats:
    """Return the mean of each rank; NaN without records."""
    present = np.isfinite(times)
    counts = present.sum(axis=1)
    sums = np.where(present, times, 0.0).sum(axis=1)
    means: Floats = np.divide(sums, counts, out=np.full(len(times), np.nan), where=counts > 0)
    return means


def _beyond(means: Floats, limit: float) -> list[int]:
    """Return the ranks whose mean exceeds a limit, the slowest first."""
    return [int(rank) for rank in np.argsort(-means) if means[rank] > limit]


def three_sigma(times: Floats) -> list[int]:
    """Name ranks whose mean time lies more than 3 standard deviations over the mean of the ranks.

    No rank of ten or fewer can: the largest deviation of n values is (n - 1) / sqrt(n) standard deviations.
    """
    means = _means(times)
    centre, deviation = float(np.nanmean(means)), float(np.nanstd(means))
    return _beyond(means, centre + max(SIGMAS * deviation, LEAST_SHARE * centre))


def median_and_mad(times: Floats) -> list[int]:
    """Name ranks whose mean time lies more than 3 * 1.4826 median absolute deviations over the median of the ranks."""
    means = _means(times)
    centre = float(np.nanmedian(means))
    deviation = NORMAL_MAD * float(np.nanmedian(np.abs(means - centre)))
    return _beyond(means, centre + max(SIGMAS * deviation, LEAST_SHARE * centre))


def frontier_of(phases: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Return the share of the exposed time that each rank leads, and how much of that lies beyond the median rank.

    Frontier accounting, arXiv 2606.06751. ``phases``: own time in each phase, in the order of the phases. At the end of each, the
    frontier is the largest cumulative time over the ranks. What it grows by is the exposed time of the phase, and belongs to the
    rank that is at the frontier.
    """
    led = np.zeros(len(next(iter(phases.values()))))
    beyond = np.zeros_like(led)
    cumulative = np.zeros_like(next(iter(phases.values())))
    before = np.zeros(cumulative.shape[1])
    for times in phases.values():
        cumulative = cumulative + times
        ends = np.where(np.isfinite(cumulative), cumulative, 0.0)
        reached = ends.max(axis=0)
        np.add.at(led, ends.argmax(axis=0), reached - before)
        before = reached
    recorded = np.isfinite(cumulative).any(axis=0)
    leads = ends.argmax(axis=0)[recorded]
    np.add.at(beyond, leads, (reached - _medians(cumulative))[recorded])
    total = max(float(led.sum()), 1e-9)
    return led / total, beyond / total


def _medians(times: Floats) -> Floats:
    """Return the median over the recorded ranks of each step; NaN without any."""
    medians = np.full(times.shape[1], np.nan)
    recorded = np.isfinite(times).any(axis=0)
    medians[recorded] = np.nanmedian(times[:, recorded], axis=0)
    return medians


def frontier(phases: Mapping[str, Floats]) -> list[int]:
    """Name ranks that lead at least 5 % more of the exposed time than an equal share. The paper ranks, and has no threshold."""
    led, _ = frontier_of(phases)
    return _beyond(led, 1 / len(led) + LEAST_SHARE)


def frontier_with_cost(phases: Mapping[str, Floats]) -> list[int]:
    """Name the same ranks, if they are together ahead of the median rank by at least 5 % of the exposed time."""
    _, beyond = frontier_of(phases)
    named = frontier(phases)
    return named if beyond[named].sum() >= LEAST_SHARE else []


BASELINES: Final[dict[str, Callable[[Floats, Floats, Mapping[str, Floats]], list[int]]]] = {
    "mean + 3 sigma of step time": lambda walls, _own, _phases: three_sigma(walls),
    "mean + 3 sigma of own time": lambda _walls, own, _phases: three_sigma(own),
    "median + 3 MAD of own time": lambda _walls, own, _phases: median_and_mad(own),
    "frontier accounting": lambda _walls, _own, phases: frontier(phases),
    "frontier accounting from 5 % on": lambda _walls, _own, phases: frontier_with_cost(phases),
}
"""Name to the function from step times, own times and own times by phase to the ranks that are named.

Collectives equalise step times, so that their means hardly differ; own times are what rankscope records."""
