"""Growth over steps, robust to outliers: the Theil-Sen slope and its confidence interval.

The slope is the median of the slopes between all pairs of samples. Its interval comes from Kendall's statistic, the number of
rising minus falling pairs. For n samples without a trend this has the variance s² = n (n - 1) (2 n + 5) / 18. The bounds, for z
standard deviations, are at the places (N - z s) / 2 and (N + z s) / 2 of the N slopes in ascending order (Sen, "Estimates of the
regression coefficient based on Kendall's tau", 1968).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

MINIMUM_SAMPLES: Final = 10
MOST_SAMPLES: Final = 100
"""Maximum number of samples used; more are thinned out evenly, because the number of pairs grows with the square."""
UNSURE: Final = 0.01
"""Probability that the interval of any rank misses its slope."""
GROWTH: Final = 0.01
"""Minimum growth of a leak over all samples, as a fraction of the initial value; ``GROWTH_BYTES`` must be reached, too."""
GROWTH_BYTES: Final = 1 << 20
BLOCKS: Final = 8
CERTAIN: Final = 5.208
"""Student's t at 0.999 with 6 degrees of freedom, for the seven rises between eight blocks."""

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
        kept = np.linspace(0, count - 1, MOST_SAMPLES).astype(np.intp)
        steps, values, count = steps[kept], values[kept], MOST_SAMPLES
    first, second = _pairs(count)
    slopes = np.sort((values[second] - values[first]) / (steps[second] - steps[first]))
    spread = _deviations(series) * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low, high = int((len(slopes) - spread) / 2), math.ceil((len(slopes) + spread) / 2)
    middle = (float(slopes[(len(slopes) - 1) // 2]) + float(slopes[len(slopes) // 2])) / 2
    return Slope(middle, float(slopes[max(low, 0)]), float(slopes[min(high, len(slopes) - 1)]))


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
    one block of samples to the next must be above zero by ``CERTAIN`` standard errors. Random drift, a jump or filling caches do
    not reach that.
    """
    if slope.low <= 0:
        return False
    medians = np.array([np.median(block) for block in np.array_split(values, BLOCKS)])
    rises = np.diff(medians)
    error = float(rises.std(ddof=1)) / math.sqrt(len(rises))
    grown = float(rises.sum())
    worth = max(GROWTH * float(medians[0]), GROWTH_BYTES)
    goes_on = float(rises[-2:].mean()) >= 0.2 * float(rises.mean())
    return grown >= worth and float(rises.mean()) >= CERTAIN * error and goes_on
