"""Student's t distribution: numpy has none, and scipy is a large dependency.

Tail probabilities use the continued fraction of the incomplete beta function (Abramowitz and Stegun, 26.5.8 and 26.7.1).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

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
