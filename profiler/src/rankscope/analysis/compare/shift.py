"""Difference between two series of steps, tested against their own noise.

Steps are not independent: noise lasts (a neighbour's job, a slow disk). Each series is therefore cut into blocks of consecutive
steps, several times as long as its autocorrelation. Welch's test compares the medians of the blocks (the typical step) and their
means (the average step): "batch means". If noise lasts too long for that, the interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
Statistic = Literal["typical", "average"]

MIN_BLOCKS: Final = 3
"""Minimum number of blocks of either side: fewer do not show their own noise."""

MAX_BLOCKS: Final = 24
"""Approximate maximum number of blocks of the shorter side: more blocks add little precision and are less robust."""

MIN_BLOCK_STEPS: Final = 6
"""Minimum number of steps per block: shorter blocks have no meaningful median."""

MIN_STEPS: Final = 30
"""Minimum number of steps of either side: fewer do not show how long their noise lasts."""

MOST_LEFT: Final = 0.8
"""Upper limit of the assumed correlation between neighbouring blocks: so few blocks cannot show more."""

TIMES_LASTING: Final = 3.0
"""Minimum length of a block in multiples of the noise's duration, so that neighbouring blocks correlate little."""

POWER: Final = 0.8
"""Chance with which a change of the detectable size would have been found."""


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A of one statistic, in the unit of the series."""

    a: float
    b: float
    low: float
    high: float
    """Bounds of the interval of the difference, at the requested level."""
    p_value: float
    """Chance of a difference at least as large between two series of the same kind; not corrected for other tests."""
    detectable: float
    """The smallest difference that would have been found with the chance ``POWER``."""
    ratio: tuple[float, float, float] | None
    """``b / a`` and its interval, which includes the noise of both; ``None`` unless both are positive."""

    @property
    def difference(self) -> float:
        """``b - a``."""
        return self.b - self.a

    @property
    def is_real(self) -> bool:
        """True if the interval excludes zero."""
        return self.low > 0 or self.high < 0


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


def cut(a: Series, b: Series) -> tuple[list[Series], list[Series], float]:
    """Cut both series into blocks of consecutive steps of about equal length.

    A block is at least ``TIMES_LASTING`` times as long as noise lasts. If that makes fewer than ``MIN_BLOCKS`` blocks, the
    shorter series is cut into ``MIN_BLOCKS``. The third value is the factor by which the blocks are then too short, else 1.
    """
    shorter = min(len(a), len(b))
    if shorter < MIN_STEPS:
        return [a], [b], 1.0
    wanted = max(MIN_BLOCK_STEPS, math.ceil(TIMES_LASTING * max(lasting(a), lasting(b))), shorter // MAX_BLOCKS)
    length = min(wanted, shorter // MIN_BLOCKS)
    return np.array_split(a, len(a) // length), np.array_split(b, len(b) // length), wanted / length


def compare_blocks(
    a: Sequence[Series], b: Sequence[Series], too_short: float, statistic: Statistic, *, level: float
) -> Difference | None:
    """Apply Welch's test to the blocks; the interval misses the truth with the chance ``level``. ``None``: too few blocks.

    Blocks that are too short underestimate their noise: its variance is multiplied by the factor ``too_short``.

    The interval of the ratio is that of log(b / a), so that exchanging the sides inverts the ratio exactly.
    """
    if min(len(a), len(b)) < MIN_BLOCKS:
        return None
    of_a, of_b = _per_block(a, statistic), _per_block(b, statistic)
    variance_a, variance_b = (too_short * variance for variance in _variances(of_a, of_b))
    value_a, value_b = _value(a, of_a, statistic), _value(b, of_b, statistic)
    error, df = _welch(variance_a, len(a), variance_b, len(b))
    difference = value_b - value_a
    t = abs(difference) / error if error > 0 else math.inf if difference else 0.0
    reach = quantile(level / 2, df)
    return Difference(
        a=value_a,
        b=value_b,
        low=difference - reach * error,
        high=difference + reach * error,
        p_value=two_sided(t, df),
        detectable=(reach + quantile(1 - POWER, df)) * error,
        ratio=_ratio(value_a, variance_a, value_b, variance_b, reach),
    )


def _per_block(blocks: Sequence[Series], statistic: Statistic) -> Series:
    of_each = np.median if statistic == "typical" else np.mean
    # Most blocks are as long as their neighbours: computing all of one length at once is many times as fast.
    return np.concatenate([of_each(np.stack(list(alike)), axis=1) for _, alike in groupby(blocks, len)])


def _value(blocks: Sequence[Series], per_block: Series, statistic: Statistic) -> float:
    # Blocks differ in length by a step: the means of a step's parts add up only for the mean over all steps.
    return float(per_block.mean() if statistic == "typical" else np.concatenate(blocks).mean())


def _variances(a: Series, b: Series) -> tuple[float, float]:
    """Return the variances of the means over the blocks of both sides.

    The quieter side is taken to be as noisy as both together: a rare event may have missed its few blocks by chance. Correlation
    left between neighbouring blocks increases the variances, as in an autoregressive series of the first order.
    """
    within = [block - block.mean() for block in (a, b)]
    squares = [float((one**2).sum()) for one in within]
    both = sum(squares)
    pooled = both / (len(a) + len(b) - 2)
    lagged = sum(float((one[1:] * one[:-1]).sum()) for one in within)
    rho = min(max(lagged / both if both > 0 else 0.0, 0.0), MOST_LEFT)
    left = (1 + rho) / (1 - rho)
    of_a, of_b = (left * max(square / (len(one) - 1), pooled) / len(one) for one, square in zip(within, squares, strict=True))
    return of_a, of_b


def _welch(variance_a: float, count_a: int, variance_b: float, count_b: int) -> tuple[float, float]:
    """Return the standard error of the difference, and its degrees of freedom (Welch-Satterthwaite)."""
    both = variance_a + variance_b
    if both <= 0:
        return 0.0, float(count_a + count_b - 2)
    share_a, share_b = variance_a / both, variance_b / both
    return math.sqrt(both), 1 / (share_a**2 / (count_a - 1) + share_b**2 / (count_b - 1))


def _ratio(a: float, variance_a: float, b: float, variance_b: float, reach: float) -> tuple[float, float, float] | None:
    if a <= 0 or b <= 0:
        return None
    error = math.sqrt(variance_a / a**2 + variance_b / b**2)
    ratio, spread = b / a, math.exp(min(reach * error, 700.0))
    return ratio, ratio / spread, ratio * spread


def superiority(a: Series, b: Series) -> float:
    """Return the chance that a step of ``b`` is larger than one of ``a`` (Vargha and Delaney 2000).

    Ties count half; 0.5: neither side is larger.

    Cliff's delta is 2 * superiority - 1.
    """
    ordered = np.sort(a)
    below = np.searchsorted(ordered, b, side="left") + np.searchsorted(ordered, b, side="right")
    return float(below.mean()) / (2 * len(a))


# Student's t distribution: numpy has none, and scipy is a large dependency. Tail probabilities use the continued fraction of the
# incomplete beta function (Abramowitz and Stegun, 26.5.8 and 26.7.1).
_TINY: Final = 1e-300
_TERMS: Final = 300
_PRECISION: Final = 1e-14
_STEPS: Final = 100


def two_sided(t: float, df: float) -> float:
    """Return the chance that ``|T|`` reaches ``|t|`` with ``df`` > 0 degrees of freedom."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def quantile(tail: float, df: float) -> float:
    """Return the t > 0 that ``T`` exceeds with the chance ``tail``, 0 < tail < 0.5."""
    # The tail is convex and heavier than the normal one, so Newton's method climbs from the normal quantile to the root.
    t = NormalDist().inv_cdf(1 - tail)
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi * df)
    for _ in range(_STEPS):
        density = scale * (1 + t * t / df) ** (-(df + 1) / 2)
        further = (two_sided(t, df) / 2 - tail) / density
        t += further
        if abs(further) < 1e-12 * t:
            break
    return t


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
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for factor in (even, odd):
            d = 1 / _not_zero(1 + factor * d)
            c = _not_zero(1 + factor / c)
            value *= c * d
        if abs(value - before) < _PRECISION * abs(value):
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
