"""Readings of the GPUs of a run's hosts over time, as figures get them: few points, none of what stands out lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.data.whole import read_json

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
"""Of ``HardwareSample``."""

ROW: Final = np.dtype([("unix_ns", "<i8"), *((gauge, "<f4") for gauge in GAUGES)])
"""One sample, NaN where the GPU did not tell, or was not seen."""

MOST_POINTS: Final = 2_000
"""In a series: more than a screen is wide."""

OF_RUN: Final = "the samples that rankscope run took of each host's exporter"
OF_PROMETHEUS: Final = "the Prometheus of --prometheus; the run has no samples of its own"

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


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU, or MIG device, that was sampled."""

    gpu_uuid: str
    host: str
    index: int | None = None
    """Number of the GPU on its host; ``None``: not told."""
    name: str | None = None
    """Its model, where a rank on it told."""
    parent_uuid: str | None = None
    """Of a MIG device: the GPU that it is a part of, which has the gauges that the two share."""
    ranks: list[int] = []
    """Ranks that train on it, ascending."""
    samples: int = 0
    """Rows, those that tell nothing among them."""
    first_unix_ns: int | None = None
    last_unix_ns: int | None = None
    gauges: dict[str, GaugeRange] = {}
    """Those of which anything is known."""
    memory_total_bytes: int | None = None
    throttle_samples: int = 0
    """Samples that tell which reasons for a lowered clock were active; 0: whether it was throttled is not known."""
    throttled_samples: int = 0
    """Of these, those in which any of ``events.THROTTLES`` was active."""
    throttled: dict[str, int] = {}
    """Of these, how many each reason was active in."""
    rises: dict[str, int] = {}
    """Counter of ``events.COUNTED`` that was told to how far it rose since the first sample."""
    links: dict[str, LinkState] = {}
    """Links that were told."""
    simulated: bool = False
    file: str = ""
    """Where its rows are."""


class HardwareIndex(msgspec.Struct, frozen=True):
    """What there is."""

    gpus: list[Gpu] = []
    """By host, index and uuid."""
    why_none: str | None = None
    """Why there are no samples and how to get them; ``None``: there are some."""
    missing: list[str] = []
    """Why samples are missing now and then, each reason once with its host."""
    unsampled_ranks: list[int] = []
    """Ranks with a GPU that no sample is of."""
    clock_host: str | None = None
    """Host by whose clock ``Hardware.clock`` tells when steps began; ``None``: no step has a time."""
    prometheus: str | None = None
    """Address of the Prometheus that told of them; ``None``: they were recorded with the run."""
    step_s: float | None = None
    """Of a Prometheus: seconds between the points; what lies between them is not shown."""


@dataclass(frozen=True, slots=True)
class HardwareSeries:
    """Readings of one GPU in order of time."""

    gpu: Gpu
    unix_ns: NDArray[np.int64]
    """[points]"""
    values: dict[str, NDArray[np.float64]]
    """Gauge to [points], NaN where it is not known. Where points stand for several samples each, two and two have the lowest and
    the highest of the same samples, in the order in which they came."""
    samples_per_pair: int
    """1: every point is a sample."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Hardware:
    """GPUs of a run; ``rows`` reads the samples of one, ``ROW`` by time. Raises ``RankscopeError``."""

    index: HardwareIndex
    rows: Callable[[Gpu], Rows]
    clock: StepClock | None = None
    """When the steps of the run began."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """By host, index and uuid."""
        return self.index.gpus

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return OF_RUN if self.index.prometheus is None else OF_PROMETHEUS

    def series(
        self, gpu_uuid: str, *, since_unix_ns: int | None = None, until_unix_ns: int | None = None, most_points: int = MOST_POINTS
    ) -> HardwareSeries:
        """Readings from ``since_unix_ns`` to ``until_unix_ns`` (both among them), in at most ``most_points``, two or more. Raises
        ``RankscopeError``.
        """
        gpu = next((one for one in self.gpus if one.gpu_uuid == gpu_uuid), None)
        if gpu is None:
            raise RankscopeError(f"no samples of GPU {gpu_uuid}")
        rows = self.rows(gpu)
        low = 0 if since_unix_ns is None else int(np.searchsorted(rows["unix_ns"], since_unix_ns, "left"))
        high = len(rows) if until_unix_ns is None else int(np.searchsorted(rows["unix_ns"], until_unix_ns, "right"))
        return _thinned(gpu, rows[low:high], most_points)


def nothing(why: str) -> Hardware:
    """No samples at all."""

    def rows(gpu: Gpu) -> Rows:
        raise RankscopeError(f"no samples of GPU {gpu.gpu_uuid}")

    return Hardware(HardwareIndex(why_none=why), rows)


def stored(folder: Path) -> Hardware:
    """What has been written into ``folder``. Raises ``InputError``."""
    index = read_json(folder / INDEX, HardwareIndex, "the cached list of GPUs")
    return Hardware(index, lambda gpu: _read(folder, gpu), None if index.clock_host is None else _clock(folder))


def _clock(folder: Path) -> StepClock:
    try:
        steps, starts = np.fromfile(folder / CLOCK, np.int64).reshape(2, -1)
    except (OSError, ValueError) as error:
        raise InputError(folder, f"cached samples cannot be read: {error}") from error
    return StepClock(steps, starts)


def _read(folder: Path, gpu: Gpu) -> Rows:
    try:
        rows: Rows = np.fromfile(folder / gpu.file, ROW, gpu.samples)
    except OSError as error:
        raise InputError(folder, f"cached samples cannot be read: {error}") from error
    return in_time(rows)


def in_time(rows: Rows) -> Rows:
    """In order of time: a host's clock may have been set back."""
    times = rows["unix_ns"]
    return rows if (np.diff(times) >= 0).all() else rows[np.argsort(times, kind="stable")]


def _thinned(gpu: Gpu, rows: Rows, most_points: int) -> HardwareSeries:
    times = rows["unix_ns"].astype(np.int64)
    if len(rows) <= most_points:
        return HardwareSeries(gpu, times, {gauge: rows[gauge].astype(np.float64) for gauge in GAUGES}, 1)
    each = -(-len(rows) // (most_points // 2))
    firsts = np.arange(0, len(rows), each)
    lasts = np.append(firsts[1:], len(rows)) - 1
    points = np.stack([times[firsts], times[lasts]], axis=1).ravel()
    return HardwareSeries(gpu, points, {gauge: _extremes(rows[gauge].astype(np.float64), each) for gauge in GAUGES}, each)


def _extremes(values: NDArray[np.float64], each: int) -> NDArray[np.float64]:
    """The lowest and the highest of every ``each`` values, in the order in which they came."""
    padded = np.full(-(-len(values) // each) * each, np.nan)
    padded[: len(values)] = values
    bins = padded.reshape(-1, each)
    lowest, highest = np.fmin.reduce(bins, axis=1), np.fmax.reduce(bins, axis=1)
    falling = np.where(np.isnan(bins), -np.inf, bins).argmax(axis=1) < np.where(np.isnan(bins), np.inf, bins).argmin(axis=1)
    points = np.empty(2 * len(bins))
    points[0::2] = np.where(falling, highest, lowest)
    points[1::2] = np.where(falling, lowest, highest)
    return points
