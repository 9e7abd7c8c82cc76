"""A run over its steps, all ranks together: percentiles of step and own time, slowest rank, throughput and change points.

Sorting a thousand ranks at ten thousand steps is too slow for drawing a figure, so it is done once, with the matrices. For a live
run only new steps are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import by_step, of_blocks
from rankscope.analysis.inference.change_points import ChangePoint, change_points
from rankscope.dashboards.data.cached_files import read_arrays, write_arrays
from rankscope.dashboards.data.source import StepMatrices

PERCENTILES: Final = (5, 25, 50, 75, 95, 100)
MEDIAN: Final = PERCENTILES.index(50)
HIGHEST: Final = PERCENTILES.index(100)

_BY_STEP: Final = ("wall_us", "own_us", "slowest", "samples", "tokens")


@dataclass(frozen=True, slots=True)
class Trend:
    """Trend arrays, with one entry per step in the last dimension. NaN: not known."""

    steps: NDArray[np.int64]
    wall_us: NDArray[np.float32]
    """[``PERCENTILES`` over the ranks, steps]."""
    own_us: NDArray[np.float32]
    """[``PERCENTILES`` over the ranks, steps]."""
    slowest: NDArray[np.int64]
    """Rank with the longest own time; -1: not known."""
    samples: NDArray[np.float32]
    """Mean over the ranks that reported them."""
    tokens: NDArray[np.float32]
    profiled: NDArray[np.bool_]
    """True if the profiler was on in any rank, so that the times include its overhead."""
    changes: tuple[ChangePoint, ...] = ()
    """Lasting changes of the median step time, without profiled steps."""


def trend_of(matrices: StepMatrices, profiled: NDArray[np.int64], *, before: Trend | None = None, since: float = 0) -> Trend:
    """Return the trend. ``profiled``: step numbers. Steps before ``since`` come from ``before``, which has the same ranks."""
    steps = np.asarray(matrices.steps, np.int64)
    first = 0
    if before is not None:
        first = min(int(np.searchsorted(steps, since)), len(before.steps))
        if not np.array_equal(before.steps[:first], steps[:first]):
            first = 0
    new = (len(matrices.ranks), len(steps) - first)
    parts = of_blocks(new, lambda block: _part(matrices, first + block.start, first + block.stop))
    if first and before is not None:
        parts.insert(0, {name: getattr(before, name)[..., :first] for name in _BY_STEP})
    arrays: dict[str, NDArray[Any]] = {
        name: np.concatenate([part[name] for part in parts], axis=-1) for name in _BY_STEP
    } if parts else _part(matrices, 0, 0)  # fmt: skip
    is_profiled = np.isin(steps, profiled)
    typical = np.where(is_profiled, np.nan, arrays["wall_us"][MEDIAN])
    return Trend(steps=steps, **arrays, profiled=is_profiled, changes=tuple(change_points(typical)))


def write_trend(trend: Trend, file: Path) -> None:
    """Write the trend, replacing the file. Raises ``OSError``."""
    arrays = {name: getattr(trend, name) for name in ("steps", *_BY_STEP, "profiled")}
    changes = np.array([(change.at, change.before, change.after) for change in trend.changes]).reshape(-1, 3)
    write_arrays(file, {**arrays, "changes": changes})


def read_trend(file: Path) -> Trend:
    """Read the trend that ``write_trend`` wrote. Raises ``InputError``."""
    arrays = read_arrays(file, "the cached trend")
    changes = tuple(ChangePoint(int(at), before, after) for at, before, after in arrays.pop("changes").tolist())
    return Trend(**arrays, changes=changes)


def _part(matrices: StepMatrices, first: int, last: int) -> dict[str, NDArray[Any]]:
    def values(metric: str) -> NDArray[np.float32]:
        return matrices.part(metric, first, last).values

    own = values("own_us")
    return {
        "wall_us": _percentiles(values("wall_us")),
        "own_us": _percentiles(own),
        "slowest": _slowest(own, np.asarray(matrices.ranks)),
        "samples": _mean(values("samples")),
        "tokens": _mean(values("tokens")),
    }


def _percentiles(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [``PERCENTILES``, steps] of [ranks, steps], linearly interpolated."""
    percentiles = np.full((len(PERCENTILES), values.shape[1]), np.nan, np.float32)
    value_counts = np.isfinite(values).sum(axis=0)
    known_steps = np.flatnonzero(value_counts)
    ordered = by_step(values[:, known_steps])
    ordered.sort(axis=1)  # NaN sorts last
    for number, percentile in enumerate(PERCENTILES):
        place = percentile / 100 * (value_counts[known_steps] - 1)
        low = np.floor(place).astype(np.intp)
        rows = np.arange(len(known_steps))
        below, above = ordered[rows, low], ordered[rows, np.ceil(place).astype(np.intp)]
        percentiles[number, known_steps] = below + (above - below) * (place - low)
    return percentiles


def _slowest(own: NDArray[np.float32], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    has_values = np.isfinite(own).any(axis=0)
    slowest = np.full(own.shape[1], -1, np.int64)
    slowest[has_values] = ranks[np.nanargmax(own[:, has_values], axis=0)] if has_values.any() else -1
    return slowest


def _mean(values: NDArray[np.float32]) -> NDArray[np.float32]:
    value_counts = np.isfinite(values).sum(axis=0)
    sums = values.sum(axis=0, where=np.isfinite(values), dtype=np.float64)
    means: NDArray[np.float64] = np.divide(sums, value_counts, out=np.full(len(value_counts), np.nan), where=value_counts > 0)
    return means.astype(np.float32)


def stretches(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first index of each run of true values, and the index after its last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
