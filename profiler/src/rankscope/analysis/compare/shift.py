"""Difference between two series of steps, tested against their own noise.

Steps are not independent: noise lasts (a neighbour's job, a slow disk). Each series is therefore cut into blocks of consecutive
steps, several times as long as its autocorrelation. Welch's test compares the medians of the blocks (the typical step) and their
means (the average step): "batch means". If noise lasts too long for that, the interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.statistics import BATCH_LENGTH, autocorrelation_time, t_quantile, t_tail

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


def cut(a: Series, b: Series) -> tuple[list[Series], list[Series], float]:
    """Cut both series into blocks of consecutive steps of about equal length.

    A block is at least ``BATCH_LENGTH`` times as long as noise lasts. If that makes fewer than ``MIN_BLOCKS`` blocks, the
    shorter series is cut into ``MIN_BLOCKS``. The third value is the factor by which the blocks are then too short, else 1.
    """
    shorter = min(len(a), len(b))
    if shorter < MIN_STEPS:
        return [a], [b], 1.0
    wanted = max(
        MIN_BLOCK_STEPS,
        math.ceil(BATCH_LENGTH * max(autocorrelation_time(a), autocorrelation_time(b))),
        shorter // MAX_BLOCKS,
    )
    length = min(wanted, shorter // MIN_BLOCKS)
    return np.array_split(a, len(a) // length), np.array_split(b, len(b) // length), wanted / length


def compare_blocks(
    a: Sequence[Series], b: Sequence[Series], too_short: float, statistic: Statistic, *, level: float
) -> Difference | None:
    """Apply Welch's test to the blocks; the interval misses the truth with the chance ``level``. ``None``: too few blocks.

    Blocks that are too short underestimate their noise: its variance is multiplied by the factor ``too_short``.

    The typical step is the median of all steps of a side, so that a run has the same one in every comparison. Its interval
    includes that of the mean over the blocks' medians: between two states, the median of all steps jumps by chance alone.

    The interval of the ratio is that of log(b / a), so that exchanging the sides inverts the ratio exactly.
    """
    if min(len(a), len(b)) < MIN_BLOCKS:
        return None
    of_a, of_b = _per_block(a, statistic), _per_block(b, statistic)
    variance_a, variance_b = (too_short * variance for variance in _variances(of_a, of_b))
    value_a, value_b = _value(a, statistic), _value(b, statistic)
    error, df = _welch(variance_a, len(a), variance_b, len(b))
    difference = value_b - value_a
    tested = difference if statistic == "average" else float(of_b.mean() - of_a.mean())
    nearest = min(abs(difference), abs(tested)) if difference * tested > 0 else 0.0
    t = nearest / error if error > 0 else math.inf if nearest else 0.0
    reach = t_quantile(level / 2, df)
    return Difference(
        a=value_a,
        b=value_b,
        low=min(difference, tested) - reach * error,
        high=max(difference, tested) + reach * error,
        p_value=2 * t_tail(t, df),
        detectable=(reach + t_quantile(1 - POWER, df)) * error + abs(difference - tested),
        ratio=_ratio(value_a, variance_a, value_b, variance_b, reach),
    )


def _per_block(blocks: Sequence[Series], statistic: Statistic) -> Series:
    of_each = np.median if statistic == "typical" else np.mean
    # Most blocks are as long as their neighbours: computing all of one length at once is many times as fast.
    return np.concatenate([of_each(np.stack(list(alike)), axis=1) for _, alike in groupby(blocks, len)])


def _value(blocks: Sequence[Series], statistic: Statistic) -> float:
    """Return the statistic of all steps of a side, which depends neither on the blocks nor on the other side."""
    values = np.concatenate(blocks)
    return float(np.median(values) if statistic == "typical" else values.mean())


def _variances(a: Series, b: Series) -> tuple[float, float]:
    """Return the variances of the means over the blocks of both sides.

    The quieter side is taken to be as noisy as both together: a rare event may have missed its few blocks by chance. Correlation
    left between neighbouring blocks increases the variances, as in an autoregressive series of the first order.
    """
    within = [block - block.mean() for block in (a, b)]
    squares = [float((deviation**2).sum()) for deviation in within]
    both = sum(squares)
    pooled = both / (len(a) + len(b) - 2)
    lagged = sum(float((deviation[1:] * deviation[:-1]).sum()) for deviation in within)
    rho = min(max(lagged / both if both > 0 else 0.0, 0.0), MOST_LEFT)
    inflation = (1 + rho) / (1 - rho)
    of_a, of_b = (
        inflation * max(square / (len(deviation) - 1), pooled) / len(deviation)
        for deviation, square in zip(within, squares, strict=True)
    )
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

    Ties count half; 0.5: neither side is larger. Cliff's delta is 2 * superiority - 1.
    """
    ordered = np.sort(a)
    below = np.searchsorted(ordered, b, side="left") + np.searchsorted(ordered, b, side="right")
    return float(below.mean()) / (2 * len(a))
