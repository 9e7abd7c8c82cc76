"""Statistics of series of steps whose noise lasts: autocorrelation time, batch means, Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

MOST_BATCHES: Final = 32
"""Maximum number of batches: more add little precision, and are less robust."""

FEWEST_BATCHES: Final = 8
"""Number of batches that is kept even where noise lasts longer than a batch. The variance is then enlarged instead."""

_TIMES_LASTING: Final = 3.0
"""Length of a batch in multiples of the time that noise lasts beyond the step itself."""


def lasting(series: Series) -> float:
    """Return how many steps noise lasts: the integrated autocorrelation time 1 + 2 sum rho(k), at least 1.

    The values are first replaced by their ranks in sorted order, so that single slow steps do not dominate. The sum ends at the
    first window of five times itself (Sokal 1997, "Monte Carlo methods in statistical mechanics").
    """
    count = len(series)
    ordered = np.unique(series, return_inverse=True)[1].astype(np.float64)
    centred = ordered - ordered.mean()
    power = np.abs(np.fft.rfft(centred, 2 * count)) ** 2
    covariance = np.fft.irfft(power)[:count]
    if covariance[0] <= 1e-9 * count:
        return 1.0
    # Subtracting the sample's own mean makes every covariance too small, by about the variance of that mean.
    rho = covariance / covariance[0] * (count / (count - np.arange(count)))
    times = 1 + 2 * np.cumsum(rho[1 : max(2, count // 2)])
    window = np.arange(1, len(times) + 1)
    enough = np.flatnonzero(window >= 5 * times)
    time = max(1.0, float(times[enough[0] if len(enough) else -1]))
    # Subtracting the mean hides the share time/count of the correlation.
    return time * (1 + min(1.0, 2 * time / count))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of a series with its standard error, by the method of batch means."""

    mean: float
    error: float
    """Standard error; infinite where one step is all there is."""
    freedom: float
    """Degrees of freedom of the error."""

    def bounds(self, level: float) -> tuple[float, float]:
        """Return the two-sided interval that holds the true mean with the probability ``level``."""
        reach = self.reach((1 - level) / 2)
        return self.mean - reach, self.mean + reach

    def reach(self, tail: float) -> float:
        """Return how far above the true mean the estimate is with a probability of only ``tail``."""
        if self.error == 0:
            return 0.0
        return math.inf if math.isinf(self.error) else t_quantile(tail, self.freedom) * self.error

    def chance_below(self, value: float) -> float:
        """Return the probability that the true mean is below ``value``, as far as the spread of the batches shows."""
        if math.isinf(self.error):
            return 0.5
        if self.error == 0:
            return float(self.mean < value)
        t = (self.mean - value) / self.error
        return t_tail(t, self.freedom) if t >= 0 else 1 - t_tail(-t, self.freedom)


def mean_of(series: Series) -> Estimate:
    """Return the mean of a series of consecutive steps, and its error by the scatter of the means of batches of them.

    Batches are longer than noise lasts, so that they are about independent. Where that leaves fewer than ``FEWEST_BATCHES``,
    batches are shorter, and the variance is multiplied by the factor by which they are too short.
    """
    count = len(series)
    if count < 2:
        return Estimate(float(series.mean()) if count else 0.0, math.inf, 1.0)
    wanted = 1 + math.ceil(_TIMES_LASTING * (lasting(series) - 1)) if count >= FEWEST_BATCHES else 1
    batches = min(count, max(min(FEWEST_BATCHES, count), min(MOST_BATCHES, count // wanted)))
    edges = np.linspace(0, count, batches + 1).astype(int)
    means = np.add.reduceat(series, edges[:-1]) / np.diff(edges)
    too_short = max(1.0, wanted * batches / count)
    return Estimate(float(series.mean()), float(means.std(ddof=1) * math.sqrt(too_short / batches)), batches - 1.0)


_SMOOTH: Final = 64
"""Number of points of the integration: the result is exact to ten digits."""


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with ``freedom`` degrees of freedom exceeds ``t`` >= 0.

    With t = sqrt(freedom) tan(a) the density is proportional to cos(a) ** (freedom - 1), which is integrated numerically.
    """
    freedom = min(freedom, 1e6)
    first = math.atan2(t, math.sqrt(freedom))
    last = min(math.pi / 2, first + 40 / math.sqrt(freedom))
    points, weights = _points()
    angles = first + (last - first) * points
    logs = (freedom - 1) * np.log(np.maximum(np.cos(angles), 1e-300))
    norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(math.pi)
    return float(min(0.5, (last - first) * (weights @ np.exp(logs + norm))))


@cache
def _points() -> tuple[Series, Series]:
    points, weights = np.polynomial.legendre.leggauss(_SMOOTH)
    return (points + 1) / 2, weights / 2


@cache
def t_quantile(tail: float, freedom: float) -> float:
    """Return the value that Student's t exceeds with the probability ``tail``, at most 0.5."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > tail:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > tail else (low, middle)
    return high
