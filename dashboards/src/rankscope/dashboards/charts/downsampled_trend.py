"""Trend of a run over its steps, reduced to what fits a chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.data.trend import HIGHEST, Trend

MOST_POINTS: Final = 480


@dataclass(frozen=True, slots=True)
class DownsampledTrend:
    """Trend reduced to at most ``MOST_POINTS`` points. Arrays have the layout of those of ``Trend``."""

    steps: NDArray[np.int64]
    """First step of each point."""
    steps_per_point: int
    wall_us: NDArray[np.float32]
    """[``PERCENTILES`` over the ranks, points]; the median over the steps of each point."""
    longest_us: NDArray[np.float32]
    """Longest step time of any rank at any step of a point: the median of several steps hides a single slow one."""
    highest_own_us: NDArray[np.float32]
    """Longest own time of any rank at any step of a point, so that no slow step is lost."""
    slowest: NDArray[np.int64]
    """Rank with that own time; -1 if unknown."""
    profiled: NDArray[np.bool_]
    """True if any step of the point was profiled."""


def downsample(trend: Trend, first: int, last: int) -> DownsampledTrend:
    """Return entries ``first`` to ``last`` (exclusive) of ``trend``, with several steps per point beyond ``MOST_POINTS``."""
    wide = max(1, -(-(last - first) // MOST_POINTS))
    highest = _padded(trend.own_us[HIGHEST, first:last], wide)
    has_values: NDArray[np.bool_] = np.logical_or.reduce(np.isfinite(highest), axis=-1)
    slowest = np.full(len(highest), -1, np.int64)
    at = np.nanargmax(np.where(has_values[:, None], highest, 0), axis=-1) if len(highest) else np.empty(0, np.intp)
    slowest[has_values] = trend.slowest[first:last][(np.arange(len(highest)) * wide + at)[has_values]]
    profiled: NDArray[np.bool_] = np.logical_or.reduce(_padded(trend.profiled[first:last], wide) == 1, axis=-1)
    return DownsampledTrend(
        steps=trend.steps[first:last:wide],
        steps_per_point=wide,
        wall_us=binned(trend.wall_us[:, first:last], wide),
        longest_us=np.fmax.reduce(_padded(trend.wall_us[HIGHEST, first:last], wide), axis=-1).astype(np.float32),
        highest_own_us=np.fmax.reduce(highest, axis=-1).astype(np.float32),
        slowest=slowest,
        profiled=profiled,
    )


def binned(values: NDArray[Any], wide: int) -> NDArray[np.float32]:
    """Return medians over ``wide`` steps each, [..., steps] to [..., points]; NaN if no step of a point is known."""
    ordered = np.sort(_padded(values, wide), axis=-1)  # NaN sorts last
    value_counts = np.isfinite(ordered).sum(axis=-1, keepdims=True)
    low, high = (
        np.take_along_axis(ordered, place, axis=-1) for place in (np.maximum(value_counts - 1, 0) // 2, value_counts // 2)
    )
    return ((low + high) / 2)[..., 0].astype(np.float32)


def _padded(values: NDArray[Any], wide: int) -> NDArray[np.float64]:
    """Reshape [..., steps] to [..., points, steps of a point], padded with NaN."""
    count = -(-values.shape[-1] // wide)
    padded = np.full((*values.shape[:-1], count * wide), np.nan)
    padded[..., : values.shape[-1]] = values
    return padded.reshape(*values.shape[:-1], count, wide)
