"""Memory of a run's ranks, from the samples in their step records.

Growth is a slope over the steps: the median of the slopes between all pairs of samples. Its interval comes from Kendall's
statistic, the number of rising pairs minus the number of falling ones. For n samples without a trend the variance of the
statistic is s² = n (n - 1) (2 n + 5) / 18. Sort the N slopes in ascending order. The bounds, for z standard deviations, are those
at the places (N - z s) / 2 and (N + z s) / 2 (Sen, "Estimates of the regression coefficient based on Kendall's tau", 1968).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable
from rankscope.analysis.evidence.typical import WARM_UP
from rankscope.analysis.result.costs import Memory, MemoryGrowth, MemoryKind, RankMemory
from rankscope.analysis.statistics import t_quantile
from rankscope.runs.step_columns import MEMORY

MINIMUM_SAMPLES: Final = 10
MOST_SAMPLES: Final = 100
"""Maximum number of samples used; more are thinned out evenly, because the number of pairs grows with the square."""
UNSURE: Final = 0.01
"""Probability that the interval of any rank misses its slope."""
GROWTH: Final = 0.01
"""Minimum growth of a leak over all samples, as a fraction of the initial value; ``GROWTH_BYTES`` must be reached, too."""
GROWTH_BYTES: Final = 1 << 20
BLOCKS: Final = 8
CERTAIN: Final = 0.001
"""Probability that memory without growth reaches the growth of a leak."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slope:
    """Slope per step, with the bounds of its confidence interval."""

    middle: float
    low: float
    high: float


def slope_of(steps: Values, values: Values, *, series: int = 1) -> Slope | None:
    """Return the slope of ``values`` [samples] over ``steps`` [samples, all different].

    Return ``None`` with fewer than ``MINIMUM_SAMPLES``. ``series``: number of series tested, so that the intervals of all of them
    hold together with probability 1 - ``UNSURE``.
    """
    count = len(steps)
    if count < MINIMUM_SAMPLES:
        return None
    if count > MOST_SAMPLES:
        sampled = np.linspace(0, count - 1, MOST_SAMPLES).astype(np.intp)
        steps, values, count = steps[sampled], values[sampled], MOST_SAMPLES
    if (values == values[0]).all():  # usual, and many times as fast
        return Slope(0.0, 0.0, 0.0)
    first, second = _pairs(count)
    slopes = np.sort((values[second] - values[first]) / (steps[second] - steps[first]))
    spread = _deviations(series) * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low, high = int((len(slopes) - spread) / 2), math.ceil((len(slopes) + spread) / 2)
    return Slope(float(np.median(slopes)), float(slopes[max(low, 0)]), float(slopes[min(high, len(slopes) - 1)]))


@cache
def _deviations(series: int) -> float:
    """Return the number of standard deviations that any of ``series`` statistics exceeds with probability ``UNSURE``."""
    return NormalDist().inv_cdf(1 - UNSURE / (2 * series))


@cache
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(count, 1)


def is_leak(values: Values, slope: Slope) -> bool:
    """Return whether ``values`` [samples, evenly spaced] grow significantly and by a relevant amount, and still grow.

    Memory usage is autocorrelated, because allocations stay for a while, so a slope alone proves nothing. The mean growth from
    one block of samples to the next must be above zero beyond chance. Random drift, a jump or filling caches do not reach that.
    """
    if slope.low <= 0:
        return False
    medians = np.array([np.median(block) for block in np.array_split(values, BLOCKS)])
    rises = np.diff(medians)
    error = float(rises.std(ddof=1)) / math.sqrt(len(rises))
    grown = float(rises.sum())
    worth = max(GROWTH * float(medians[0]), GROWTH_BYTES)
    goes_on = float(rises[-2:].mean()) >= 0.2 * float(rises.mean())
    return grown >= worth and float(rises.mean()) >= t_quantile(CERTAIN, len(rises) - 1) * error and goes_on


_COLUMN: Final = {name: place for place, name in enumerate(MEMORY, start=1)}
_GROWING: Final[tuple[tuple[MemoryKind, str], ...]] = (("device", "allocated_bytes"), ("host", "resident_bytes"))


def memory_of(table: StepTable, device_bytes: Mapping[int, int]) -> Memory | None:
    """Return the memory of all ranks; ``None`` where no rank has a sample.

    ``device_bytes``: size of the device's memory by rank.
    """
    if not table.memory:
        return None
    of_rank = {rank: {name: memory_samples(samples, name) for name in MEMORY} for rank, samples in table.memory.items()}
    growth = [
        rank_growth
        for rank, series in of_rank.items()
        for kind, name in _GROWING
        if (rank_growth := _growth(rank, series, kind, name, ranks=len(of_rank), device_bytes=device_bytes.get(rank))) is not None
    ]
    return Memory(
        ranks=[_rank(rank, len(table.memory[rank]), series, device_bytes.get(rank)) for rank, series in of_rank.items()],
        growth=sorted(growth, key=lambda row: (-row.bytes_per_1000_steps, row.rank)),
    )


_Series = Mapping[str, tuple[Values, Values]]
"""Result of ``memory_samples`` for each name in ``MEMORY``."""


def _rise(counts: Values) -> int | None:
    """Return how far a counter rose over its samples."""
    return int(counts[-1] - counts[0]) if len(counts) > 1 else None


def _rank(rank: int, samples: int, series: _Series, device_bytes: int | None) -> RankMemory:
    def last(name: str) -> int | None:
        values = series[name][1]
        return int(values[-1]) if len(values) else None

    def most(name: str) -> int | None:
        values = series[name][1]
        return int(values.max()) if len(values) else None

    peak, reserved = most("peak_allocated_bytes"), most("reserved_bytes")
    return RankMemory(
        rank=rank,
        samples=samples,
        allocated_bytes=last("allocated_bytes"),
        reserved_bytes=reserved,
        peak_allocated_bytes=peak,
        device_bytes=device_bytes,
        peak_share=peak / device_bytes if peak is not None and device_bytes else None,
        fragmentation=1 - peak / reserved if peak is not None and reserved and peak <= reserved else None,
        resident_bytes=last("resident_bytes"),
        allocator_retries=last("allocator_retries"),
        later_allocator_retries=_rise(series["allocator_retries"][1]),
    )


def _growth(
    rank: int, series: _Series, kind: MemoryKind, name: str, *, ranks: int, device_bytes: int | None
) -> MemoryGrowth | None:
    steps, values = series[name]
    settled = steps >= steps[0] + WARM_UP if len(steps) else np.zeros(0, dtype=bool)
    steps, values = steps[settled], values[settled]
    slope = slope_of(steps, values, series=ranks * len(_GROWING))
    if slope is None:
        return None
    leaking = is_leak(values, slope)
    peak = series["peak_allocated_bytes"][1]
    full = None
    if leaking and kind == "device" and device_bytes and len(peak):
        full = int(max(0.0, device_bytes - float(peak[-1])) / slope.middle)
    return MemoryGrowth(
        rank=rank,
        kind=kind,
        samples=len(steps),
        bytes_per_1000_steps=1000 * slope.middle,
        low_bytes_per_1000_steps=1000 * slope.low,
        high_bytes_per_1000_steps=1000 * slope.high,
        leaking=leaking,
        steps_until_full=full,
    )


def memory_samples(samples: Matrix, name: str) -> tuple[Values, Values]:
    """Return the steps with a value in one column, ascending and distinct, and the values."""
    column = samples[:, _COLUMN[name]]
    finite = np.isfinite(column)
    steps, values = samples[finite, 0], column[finite]
    if (steps[1:] > steps[:-1]).all():
        return steps, values
    # For a step that was recorded twice the last record counts.
    each, at = np.unique(steps[::-1], return_index=True)
    return each, values[::-1][at]
