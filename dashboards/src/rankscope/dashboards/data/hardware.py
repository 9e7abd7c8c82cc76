"""Readings of the GPUs of a run's hosts over time, thinned for figures without losing the extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.data.metrics import worst_of

GAUGES: Final = (
    "utilization_ratio",
    "memory_used_bytes",
    "temperature_celsius",
    "temperature_margin_celsius",
    "power_watts",
    "power_limit_watts",
    "sm_clock_hertz",
    "sm_clock_max_hertz",
)
"""Gauges of ``HardwareSample``."""

ROW: Final = np.dtype([("unix_ns", "<i8"), *((gauge, "<f4") for gauge in GAUGES)])
"""One sample; NaN where the GPU did not report a gauge, or was not seen."""

MOST_POINTS: Final = 2_000
"""Most points of a series: more than a screen is wide."""

ORIGIN: Final = "the samples that rankscope run took of each host's exporter"
"""Source of the samples, as text for the user."""

STALE_AFTER: Final = 3.0
"""Age limit of the previous sample that a step without samples uses, in multiples of the median sampling interval."""

_MOST_STALE_NS: Final = 60 * 10**9

INDEX: Final = "hardware.json"
CLOCK: Final = "clock.i64"

Rows = np.ndarray[tuple[int], np.dtype[np.void]]


class GaugeRange(msgspec.Struct, frozen=True):
    """One gauge over all samples of a GPU."""

    lowest: float
    highest: float
    last: float


class LinkState(msgspec.Struct, frozen=True):
    """``pcie_link_width``, ``pcie_link_generation`` or ``nvlinks_down`` of a GPU while it was in use."""

    last: int
    lowest: int
    highest: int


class SampledGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sampled GPU or MIG device."""

    gpu_uuid: str
    host: str
    index: int | None = None
    """Number of the GPU on its host; ``None``: not reported."""
    name: str | None = None
    """Model of the GPU, if a rank on it reported it."""
    parent_uuid: str | None = None
    """GPU that a MIG device is part of; it has the gauges that the two share."""
    ranks: list[int] = []
    """Ranks that train on it, ascending."""
    samples: int = 0
    """Number of rows, including those without values."""
    first_unix_ns: int | None = None
    last_unix_ns: int | None = None
    gauges: dict[str, GaugeRange] = {}
    """Gauges that have any value."""
    memory_total_bytes: int | None = None
    throttle_samples: int = 0
    """Number of samples that report the active throttle reasons; 0: throttling is not known."""
    throttled_samples: int = 0
    """Number of ``throttle_samples`` in which any of ``events.THROTTLES`` was active."""
    throttled: dict[str, int] = {}
    """Number of ``throttle_samples`` in which each reason was active."""
    rises: dict[str, int] = {}
    """Reported counters of ``events.COUNTED`` to their increase since the first sample."""
    links: dict[str, LinkState] = {}
    """Reported links."""
    simulated: bool = False
    file: str = ""
    """Name of the file with its rows."""


class HardwareIndex(msgspec.Struct, frozen=True):
    """List of the sampled GPUs, and the source of their samples."""

    gpus: list[SampledGpu] = []
    """Sorted by host, index and uuid."""
    why_none: str | None = None
    """Reason why there are no samples, and how to get them; ``None``: there are some."""
    missing: list[str] = []
    """Reasons for intermittently missing samples, each once per host."""
    unsampled_ranks: list[int] = []
    """Ranks with a GPU that has no samples."""
    clock_host: str | None = None
    """Host whose clock ``Hardware.clock`` uses for step starts; ``None``: no step has a time."""


@dataclass(frozen=True, slots=True)
class HardwareSeries:
    """Readings of one GPU in order of time."""

    gpu: SampledGpu
    unix_ns: NDArray[np.int64]
    """[points]"""
    values: dict[str, NDArray[np.float64]]
    """Gauge to [points], NaN where not known. In a thinned series each pair of points is the lowest and the highest of the same
    samples, in the order in which they came."""
    samples_per_pair: int
    """Samples behind each pair of points; 1: every point is a sample."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Hardware:
    """GPUs of a run. ``rows`` reads the samples of one as ``ROW`` records, in order of time; raises ``RankscopeError``."""

    index: HardwareIndex
    rows: Callable[[SampledGpu], Rows]
    clock: StepClock | None = None
    """Start times of the run's steps."""

    @property
    def gpus(self) -> Sequence[SampledGpu]:
        """GPUs sorted by host, index and uuid."""
        return self.index.gpus

    def series(
        self, gpu_uuid: str, *, since_unix_ns: int | None = None, until_unix_ns: int | None = None, most_points: int = MOST_POINTS
    ) -> HardwareSeries:
        """Return readings from ``since_unix_ns`` to ``until_unix_ns`` (both inclusive) in at most ``most_points`` points, which
        must be at least two. Raises ``RankscopeError``.
        """
        gpu = next((candidate for candidate in self.gpus if candidate.gpu_uuid == gpu_uuid), None)
        if gpu is None:
            raise RankscopeError(f"no samples of GPU {gpu_uuid}")
        rows = self.rows(gpu)
        low = 0 if since_unix_ns is None else int(np.searchsorted(rows["unix_ns"], since_unix_ns, "left"))
        high = len(rows) if until_unix_ns is None else int(np.searchsorted(rows["unix_ns"], until_unix_ns, "right"))
        return _thinned(gpu, rows[low:high], most_points)


def no_hardware(why: str) -> Hardware:
    """Return a ``Hardware`` without samples, for the reason ``why``."""

    def rows(gpu: SampledGpu) -> Rows:
        raise RankscopeError(f"no samples of GPU {gpu.gpu_uuid}")

    return Hardware(HardwareIndex(why_none=why), rows)


def read_hardware(folder: Path) -> Hardware:
    """Open the samples that were written into ``folder``. Raises ``InputError``."""
    index = read_json(folder / INDEX, HardwareIndex, "the cached list of GPUs")
    return Hardware(index, lambda gpu: _read(folder, gpu), None if index.clock_host is None else _clock(folder))


def _clock(folder: Path) -> StepClock:
    try:
        steps, starts = np.fromfile(folder / CLOCK, np.int64).reshape(2, -1)
    except (OSError, ValueError) as error:
        raise InputError(folder, f"cached samples cannot be read: {error}") from error
    return StepClock(steps, starts)


def _read(folder: Path, gpu: SampledGpu) -> Rows:
    try:
        rows: Rows = np.fromfile(folder / gpu.file, ROW, gpu.samples)
    except OSError as error:
        raise InputError(folder, f"cached samples cannot be read: {error}") from error
    return in_time(rows)


def in_time(rows: Rows) -> Rows:
    """Return rows in order of time: a host's clock may have been set back."""
    times = rows["unix_ns"]
    return rows if (np.diff(times) >= 0).all() else rows[np.argsort(times, kind="stable")]


def _thinned(gpu: SampledGpu, rows: Rows, most_points: int) -> HardwareSeries:
    times = rows["unix_ns"].astype(np.int64)
    if len(rows) <= most_points:
        return HardwareSeries(gpu, times, {gauge: rows[gauge].astype(np.float64) for gauge in GAUGES}, 1)
    each = -(-len(rows) // (most_points // 2))
    firsts = np.arange(0, len(rows), each)
    lasts = np.append(firsts[1:], len(rows)) - 1
    points = np.stack([times[firsts], times[lasts]], axis=1).ravel()
    return HardwareSeries(gpu, points, {gauge: _extremes(rows[gauge].astype(np.float64), each) for gauge in GAUGES}, each)


def _extremes(values: NDArray[np.float64], each: int) -> NDArray[np.float64]:
    """Return the lowest and the highest of every ``each`` values, in the order in which they came."""
    padded = np.full(-(-len(values) // each) * each, np.nan)
    padded[: len(values)] = values
    bins = padded.reshape(-1, each)
    lowest, highest = np.fmin.reduce(bins, axis=1), np.fmax.reduce(bins, axis=1)
    falling = np.where(np.isnan(bins), -np.inf, bins).argmax(axis=1) < np.where(np.isnan(bins), np.inf, bins).argmin(axis=1)
    points = np.empty(2 * len(bins))
    points[0::2] = np.where(falling, highest, lowest)
    points[1::2] = np.where(falling, lowest, highest)
    return points


def in_steps(rows: Rows, metric: str, starts_ns: NDArray[np.int64], walls_us: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return [steps] of one rank: the worst sample within each step, else the last one before it that is not stale."""
    values = np.full(len(starts_ns), np.nan, np.float32)
    recorded = np.flatnonzero(np.isfinite(walls_us) & (starts_ns > 0))
    times = rows["unix_ns"]
    finite = np.isfinite(rows[metric])
    stale_ns = min(STALE_AFTER * float(np.median(np.diff(times))), _MOST_STALE_NS) if len(times) > 1 else 0.0
    times, readings = times[finite], np.append(rows[metric][finite], np.float32(np.nan))
    if not len(recorded) or not len(times):
        return values
    starts = starts_ns[recorded]
    low = np.searchsorted(times, starts, "left")
    high = np.searchsorted(times, starts + (walls_us[recorded] * 1000).astype(np.int64), "left")
    # reduceat reduces each [low, high); for an empty range it returns the value at low, which is replaced below.
    within = worst_of(metric).reduceat(readings, np.stack([low, high], axis=1).ravel())[::2]
    before = np.maximum(low - 1, 0)
    fresh = (low > 0) & (starts - times[before] <= stale_ns)
    values[recorded] = np.where(high > low, within, np.where(fresh, readings[before], np.nan))
    return values
