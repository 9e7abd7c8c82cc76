"""GPU readings in shared time columns, and statistics of each GPU over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.hardware import bare_uuid
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.hardware import Hardware, Rows, SampledGpu, in_steps
from rankscope.dashboards.data.memory_cache import MemoryCache

MOST_COLUMNS: Final = 480
"""Most columns: more than a figure has room for."""

BUSY: Final = 0.1
"""Utilization below which a GPU saves power, so that its clock is not meaningful."""

Values = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimeColumns:
    """Consecutive intervals of time."""

    edges_ns: NDArray[np.int64]
    """[columns + 1]"""
    at: NDArray[np.float64]
    """[columns]: begin on the axis, as the first step, or as seconds since the first sample if no step has a time."""
    steps_each: int
    """Steps per column; 0: no step has a time."""

    @property
    def span_unix_ns(self) -> tuple[int, int]:
        """Begin of the first column and end of the last."""
        return int(self.edges_ns[0]), int(self.edges_ns[-1])

    @property
    def key(self) -> tuple[int, int, int]:
        """Key that identifies the columns within one run."""
        return (*self.span_unix_ns, len(self.at))

    def along(self, unix_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return positions of times on the axis; times outside are clamped to its ends."""
        ends = np.append(self.at, self.at[-1] + (self.steps_each or (self.edges_ns[-1] - self.edges_ns[-2]) / 1e9))
        at: NDArray[np.float64] = np.interp(unix_ns, self.edges_ns, ends)
        return at


def time_columns(hardware: Hardware, steps: tuple[int, int] | None) -> TimeColumns:
    """Return columns over ``steps`` (first and last; ``None``: all that have a time), or over all samples if no step has a time.

    Raises ``RankscopeError`` if they would contain nothing.
    """
    clock = hardware.clock
    if clock is not None:
        low, high = (0, len(clock.steps)) if steps is None else np.searchsorted(clock.steps, (steps[0], steps[1] + 1))
        if low == high:
            raise RankscopeError("None of these steps has a time. Without steps= in the address all of them are shown.")
        each = -(-int(high - low) // MOST_COLUMNS)
        firsts = np.arange(low, high, each)
        starts = clock.starts_ns
        usual = int(np.median(np.diff(starts))) if len(starts) > 1 else 10**9
        end = int(starts[high]) if high < len(starts) else int(starts[-1]) + max(usual, 1)
        return TimeColumns(np.append(starts[firsts], end), clock.steps[firsts].astype(np.float64), each)
    spans = [(gpu.first_unix_ns, gpu.last_unix_ns) for gpu in hardware.gpus if gpu.first_unix_ns and gpu.last_unix_ns]
    if not spans:
        raise RankscopeError("There are no samples.")
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    most = max(gpu.samples for gpu in hardware.gpus)
    edges = np.linspace(first, last + 1, min(most, MOST_COLUMNS) + 1).astype(np.int64)
    return TimeColumns(edges, (edges[:-1] - first) / 1e9, 0)


@dataclass(frozen=True, slots=True)
class GpuStatistics:
    """Statistics of one GPU over a time span; NaN where it did not report."""

    medians: dict[str, float]
    lowest: dict[str, float]
    highest: dict[str, float]
    usual_clock_hertz: float
    """Median SM clock of all samples in which the GPU was in use."""
    low_clock_hertz: float
    """5th percentile of the SM clock over the span, while the GPU was in use."""


def source_of(hardware: Hardware, gpu: SampledGpu, gauge: str) -> SampledGpu:
    """Return the GPU whose readings of a gauge count for ``gpu``: itself, or the parent GPU of a MIG device without the gauge."""
    if gauge in gpu.gauges or gpu.parent_uuid is None:
        return gpu
    parents = (
        candidate
        for candidate in hardware.gpus
        if candidate.host == gpu.host and bare_uuid(candidate.gpu_uuid) == bare_uuid(gpu.parent_uuid or "")
    )
    return next(parents, gpu)


def worst_in(hardware: Hardware, gauge: str, columns: TimeColumns) -> Values:
    """Return [GPUs, columns]: worst sample in the column, else the last one before it that is not stale, else NaN."""
    walls_us = np.diff(columns.edges_ns) / 1e3

    def make() -> Values:
        values = np.full((len(hardware.gpus), len(columns.at)), np.nan, np.float32)
        for row, gpu in enumerate(hardware.gpus):
            if gauge in (source := source_of(hardware, gpu, gauge)).gauges:
                values[row] = in_steps(hardware.rows(source), gauge, columns.edges_ns[:-1], walls_us)
        return values

    return _cached(hardware, ("worst", gauge, columns.key), make)


def statistics_of(hardware: Hardware, columns: TimeColumns) -> list[GpuStatistics]:
    """Return the statistics of each GPU over the time of ``columns``."""

    def make() -> list[GpuStatistics]:
        return [_statistics(hardware.rows(gpu), columns) for gpu in hardware.gpus]

    return _cached(hardware, ("statistics", columns.key), make)


def _statistics(rows: Rows, columns: TimeColumns) -> GpuStatistics:
    low, high = np.searchsorted(rows["unix_ns"], columns.span_unix_ns)
    part = rows[low:high]
    medians, lowest, highest = {}, {}, {}
    for gauge in ("temperature_celsius", "temperature_margin_celsius", "power_watts", "power_limit_watts", "sm_clock_hertz",
                  "utilization_ratio", "memory_used_bytes"):  # fmt: skip
        finite = part[gauge][np.isfinite(part[gauge])]
        medians[gauge], lowest[gauge], highest[gauge] = (
            (float(np.median(finite)), float(finite.min()), float(finite.max())) if len(finite) else (np.nan, np.nan, np.nan)
        )
    used, used_part = _busy_clock(rows), _busy_clock(part)
    return GpuStatistics(
        medians,
        lowest,
        highest,
        float(np.median(used)) if len(used) else np.nan,
        float(np.percentile(used_part, 5)) if len(used_part) else np.nan,
    )


def _busy_clock(rows: Rows) -> NDArray[np.float32]:
    """Return SM clocks while the GPU was in use; samples without a utilization count as in use."""
    idle = rows["utilization_ratio"] < BUSY
    clocks: NDArray[np.float32] = rows["sm_clock_hertz"][~idle]
    return clocks[np.isfinite(clocks)]


_CACHES: Final[WeakKeyDictionary[Hardware, MemoryCache]] = WeakKeyDictionary()
_MAX_HELD_BYTES: Final = 16 << 20
"""Cached values per ``Hardware`` object; a live run gets a new object whenever it changes."""


def _cached(hardware: Hardware, key: Any, make: Callable[[], T]) -> T:
    """Return a cached value: three figures and a table of a page use the same ones."""
    return _CACHES.setdefault(hardware, MemoryCache(_MAX_HELD_BYTES)).get("hardware", repr(key), "", make)
