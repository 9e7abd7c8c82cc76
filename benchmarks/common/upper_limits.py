"""Exact upper limits of a rate and of a probability, from a count. Measures nothing by itself."""

from __future__ import annotations

import math
from collections.abc import Callable

CONFIDENCE = 0.95


def poisson_limit(count: int, days: float, confidence: float = CONFIDENCE) -> float:
    """Return the exact upper limit of a rate per day."""

    def at_most(mean: float) -> float:
        return sum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1))

    return _solved(at_most, 1 - confidence, 10.0 * (count + 5)) / days


def binomial_limit(count: int, trials: int, confidence: float) -> float:
    """Return the upper limit of a probability (Clopper and Pearson)."""
    ways = [math.lgamma(trials + 1) - math.lgamma(n + 1) - math.lgamma(trials - n + 1) for n in range(count + 1)]

    def at_most(chance: float) -> float:
        yes, no = math.log(chance), math.log1p(-chance)
        return sum(math.exp(way + n * yes + (trials - n) * no) for n, way in enumerate(ways))

    return 1.0 if count >= trials else _solved(at_most, 1 - confidence, 1 - 1e-12)


def _solved(falling: Callable[[float], float], value: float, most: float) -> float:
    """Return where a falling function reaches ``value``, between 0 and ``most``."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > value else (low, middle)
    return high
