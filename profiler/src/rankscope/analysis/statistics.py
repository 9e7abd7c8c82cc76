"""Statistics: medians, the excess over peers, and series of steps whose noise lasts (autocorrelation time, batch means,
Student's t).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

MOST_BATCHES: Final = 32
"""Maximum number of batches: more add little precision, and are less robust."""

FEWEST_BATCHES: Final = 8
"""Number of batches that is kept even where noise lasts longer than a batch. The variance is then enlarged instead."""

BATCH_LENGTH: Final = 3.0
"""Length of a batch in multiples of the time that noise lasts, so that neighbouring batches correlate little."""

SAMPLED_RANKS: Final = 64
"""Number of ranks, at most, from which a median over all ranks is estimated."""


def sampled(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return at most ``SAMPLED_RANKS`` of the rows of ranks, at equal distances."""
    return rows[:: max(1, -(-len(rows) // SAMPLED_RANKS))]


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; ``None`` without any."""
    numbers = [value for value in values if value is not None]
    return float(np.median(numbers)) if numbers else None


def over_median(value: float | NDArray[np.floating[Any]], peers: Sequence[float] | NDArray[np.floating[Any]]) -> Series:
    """Return by how much a value exceeds the median of its peers: a number and [peers], or values [any] and [peers, any].

    ``inference/judging/excess.py`` does the same for all ranks at all steps.
    """
    over: Series = np.subtract(value, np.median(np.asarray(peers), axis=0))
    return over


def relative_excess(value: float, peers: Sequence[float] | NDArray[np.floating[Any]]) -> float | None:
    """Return the same as a share of the median: 0.4 for 40 % more. ``None`` where the median is not above 0, or without peers."""
    usual = float(np.median(np.asarray(peers))) if len(peers) else 0.0
    return float(value) / usual - 1 if usual > 0 else None


def excess_of_rank(
    values: Mapping[int, float] | Mapping[int, float | None], rank: int, peers: Iterable[int] | None = None
) -> float | None:
    """Return by how much the value of a rank exceeds the median of its peers: by default of all other ranks in ``values``.

    ``None`` where it, or that of every peer, is unknown.
    """
    of_peers = [us for peer in (values if peers is None else peers) if peer != rank and (us := values.get(peer)) is not None]
    of_rank = values.get(rank)
    return None if of_rank is None or not of_peers else float(over_median(of_rank, of_peers))


def medians(rows: NDArray[np.floating[Any]]) -> Series:
    """Return the median of the known values of each row; NaN where none is. The values of a row are put in order."""
    value_counts = _in_order(rows)
    each = np.arange(len(rows))
    middles = rows[each, np.maximum(value_counts - 1, 0) // 2], rows[each, np.minimum(value_counts // 2, rows.shape[1] - 1)]
    medians_found: Series = np.mean(middles, axis=0, dtype=np.float64)
    return medians_found


def lower_medians(rows: NDArray[np.floating[Any]]) -> Series:
    """Return the same, but of an even number of values the lower one of the middle, which is a value of the row."""
    value_counts = _in_order(rows)
    medians_found: Series = rows[np.arange(len(rows)), np.maximum(value_counts - 1, 0) // 2].astype(np.float64)
    return medians_found


def lower_median(values: NDArray[np.floating[Any]], axis: int = 0) -> Series:
    """Return the lower median along an axis, of values without NaN: of two ranks it is the faster one."""
    place = (values.shape[axis] - 1) // 2
    medians_found: Series = np.partition(values, place, axis=axis).take(place, axis=axis).astype(np.float64)
    return medians_found


def _in_order(rows: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
    rows.sort(axis=1)  # NaN last
    value_counts: NDArray[np.intp] = np.isfinite(rows).sum(axis=1)
    return value_counts


def chance_of_next(events: int, trials: int) -> float:
    """Return the chance of an event in the next trial, after ``events`` in ``trials`` (Laplace's rule of succession)."""
    return (events + 1) / (trials + 2)


def autocorrelation_time(series: Series) -> float:
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
        return t_tail((self.mean - value) / self.error, self.freedom)


def mean_of(series: Series) -> Estimate:
    """Return the mean of a series of consecutive steps, and its error by the scatter of the means of batches of them.

    Batches are longer than noise lasts, so that they are about independent. Where that leaves fewer than ``FEWEST_BATCHES``,
    batches are shorter, and the variance is multiplied by the factor by which they are too short.
    """
    count = len(series)
    if count < 2:
        return Estimate(float(series.mean()) if count else 0.0, math.inf, 1.0)
    wanted = 1 + math.ceil(BATCH_LENGTH * (autocorrelation_time(series) - 1)) if count >= FEWEST_BATCHES else 1
    batches = min(count, max(min(FEWEST_BATCHES, count), min(MOST_BATCHES, count // wanted)))
    edges = np.linspace(0, count, batches + 1).astype(int)
    means = np.add.reduceat(series, edges[:-1]) / np.diff(edges)
    too_short = max(1.0, wanted * batches / count)
    return Estimate(float(series.mean()), float(means.std(ddof=1) * math.sqrt(too_short / batches)), batches - 1.0)


# Student's t distribution: numpy has none, and scipy is a large dependency. Tail probabilities use the continued fraction of the
# incomplete beta function (Abramowitz and Stegun, 26.5.8 and 26.7.1).
_TINY: Final = 1e-300
_TERMS: Final = 300
_PRECISION: Final = 1e-14
_STEPS: Final = 100


def t_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with ``freedom`` > 0 degrees of freedom exceeds ``t``."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    freedom = min(freedom, _NORMAL)
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return tail if t >= 0 else 1 - tail


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: float) -> float:
    """Return the t > 0 that Student's t exceeds with the probability ``tail``, 0 < tail < 0.5."""
    freedom = min(freedom, _NORMAL)
    # The tail is convex and heavier than the normal one, so Newton's method climbs from the normal quantile to the root.
    t = NormalDist().inv_cdf(1 - tail)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi * freedom)
    for _ in range(_STEPS):
        density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        further = (t_tail(t, freedom) - tail) / density
        t += further
        if abs(further) < 1e-12 * t:
            break
    return t


_NORMAL: Final = 1e6
"""Degrees of freedom from which Student's t is normal to six digits."""


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), 0 <= x <= 1."""
    if x in (0.0, 1.0):
        return x
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast on this side of the mean, and slowly on the other.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction by Lentz's method."""
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd_term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for factor in (even, odd_term):
            d = 1 / _not_zero(1 + factor * d)
            c = _not_zero(1 + factor / c)
            value *= c * d
        if abs(value - before) < _PRECISION * abs(value):
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
