"""GPU readings in shared time columns, statistics of each GPU over them, and the power of hosts and racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.hardware import bare
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.hardware import Gpu, Hardware, Rows, in_steps
from rankscope.dashboards.data.memo import Memo
from rankscope.dashboards.data.topology import Place, Topology

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
class GpuFigures:
    """Statistics of one GPU over a time span; NaN where it did not report."""

    medians: dict[str, float]
    lowest: dict[str, float]
    highest: dict[str, float]
    usual_clock_hertz: float
    """Median SM clock of all samples in which the GPU was in use."""
    low_clock_hertz: float
    """5th percentile of the SM clock over the span, while the GPU was in use."""


def source_of(hardware: Hardware, gpu: Gpu, gauge: str) -> Gpu:
    """Return the GPU whose readings of a gauge count for ``gpu``: itself, or the parent GPU of a MIG device without the gauge."""
    if gauge in gpu.gauges or gpu.parent_uuid is None:
        return gpu
    parents = (one for one in hardware.gpus if one.host == gpu.host and bare(one.gpu_uuid) == bare(gpu.parent_uuid or ""))
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

    return _held(hardware, ("worst", gauge, columns.key), make)


def means_in(hardware: Hardware, gauge: str, columns: TimeColumns) -> Values:
    """Return [GPUs, columns]: mean in the column, else the last sample before it that is not stale. MIG devices: NaN."""

    def make() -> Values:
        values = np.full((len(hardware.gpus), len(columns.at)), np.nan, np.float32)
        for row, gpu in enumerate(hardware.gpus):
            if gpu.parent_uuid is None and gauge in gpu.gauges:
                values[row] = _means(hardware.rows(gpu), gauge, columns)
        whole = np.array([[gpu.parent_uuid is None] for gpu in hardware.gpus])
        return np.where(np.isnan(values) & whole, worst_in(hardware, gauge, columns), values)

    return _held(hardware, ("mean", gauge, columns.key), make)


def _means(rows: Rows, gauge: str, columns: TimeColumns) -> Values:
    known = np.isfinite(rows[gauge])
    sums = np.append(0.0, np.cumsum(rows[gauge][known], dtype=np.float64))
    at = np.searchsorted(rows["unix_ns"][known], columns.edges_ns, "left")
    counts = np.diff(at)
    return np.where(counts > 0, np.diff(sums[at]) / np.maximum(counts, 1), np.nan).astype(np.float32)


def figures_of(hardware: Hardware, columns: TimeColumns) -> list[GpuFigures]:
    """Return the statistics of each GPU over the time of ``columns``."""
    return _held(hardware, ("figures", columns.key), lambda: [_figures(hardware.rows(gpu), columns) for gpu in hardware.gpus])


def _figures(rows: Rows, columns: TimeColumns) -> GpuFigures:
    low, high = np.searchsorted(rows["unix_ns"], columns.span_unix_ns)
    part = rows[low:high]
    medians, lowest, highest = {}, {}, {}
    for gauge in ("temperature_celsius", "temperature_margin_celsius", "power_watts", "power_limit_watts", "sm_clock_hertz",
                  "utilization_ratio", "memory_used_bytes"):  # fmt: skip
        known = part[gauge][np.isfinite(part[gauge])]
        medians[gauge], lowest[gauge], highest[gauge] = (
            (float(np.median(known)), float(known.min()), float(known.max())) if len(known) else (np.nan, np.nan, np.nan)
        )
    used, used_part = _busy_clock(rows), _busy_clock(part)
    return GpuFigures(
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


_HELD: Final[WeakKeyDictionary[Hardware, Memo]] = WeakKeyDictionary()
_MOST_HELD: Final = 12
"""Most cached values per ``Hardware`` object; a live run gets a new object whenever it changes."""


def _held(hardware: Hardware, key: Any, make: Callable[[], T]) -> T:
    """Return a cached value: three figures and a table of a page use the same ones."""
    return _HELD.setdefault(hardware, Memo(_MOST_HELD)).get(repr(key), "", make)


NO_RACK = "rack not known"


@dataclass(frozen=True, slots=True)
class GroupPower:
    """Power of the GPUs of a host or rack."""

    name: str
    known: int
    """Highest number of GPUs whose power is known at the same time."""
    gpus: int
    """Number of all GPUs of the group."""
    median_watts: float | None
    """Median of the sums over the ``known`` GPUs; ``None``: no GPU's power is known."""
    highest_watts: float | None
    headroom_celsius: float | None
    """Smallest margin of any of its GPUs to thermal slowdown."""

    @property
    def is_whole(self) -> bool:
        """True if the sums include all GPUs."""
        return self.known == self.gpus


def group_powers(
    hardware: Hardware, columns: TimeColumns, group_of: Mapping[str, str], unsampled: Mapping[str, int]
) -> list[GroupPower]:
    """Return the power of each group of ``group_of`` (GPU to group) and ``unsampled`` (group to its number of GPUs without
    samples), highest power first. MIG devices count as part of their GPU.
    """
    watts = means_in(hardware, "power_watts", columns)
    margins = worst_in(hardware, "temperature_margin_celsius", columns)
    groups = []
    for name in sorted({*group_of.values(), *unsampled}):
        rows = [row for row, gpu in enumerate(hardware.gpus) if gpu.parent_uuid is None and group_of[gpu.gpu_uuid] == name]
        groups.append(_group(name, watts[rows], margins[rows], len(rows) + unsampled.get(name, 0)))
    return sorted(groups, key=lambda group: -(group.median_watts or -1))


def _group(name: str, watts: Values, margins: Values, gpus: int) -> GroupPower:
    """Return the power of one group. Sums cover only times with the most known GPUs, so that they stay comparable."""
    counts = np.isfinite(watts).sum(axis=0)
    known = margins[np.isfinite(margins)]
    headroom = float(known.min()) if len(known) else None
    most = int(counts.max(initial=0))
    if not most:
        return GroupPower(name, 0, gpus, None, None, headroom)
    sums = np.nansum(watts[:, counts == most], axis=0)
    return GroupPower(name, most, gpus, float(np.median(sums)), float(sums.max()), headroom)


def rack_of(place: Place) -> str | None:
    """Return the rack in the place's coordinates, ``None`` if there is none."""
    return f"rack {place.coordinates['rack']}" if "rack" in place.coordinates else None


def racks_of_gpus(hardware: Hardware, topology: Topology) -> dict[str, str]:
    """Return GPU to rack; the rack of a host is that of any rank on it."""
    racks = {place.rank: rack for place in topology.places if (rack := rack_of(place)) is not None}
    hosts = {gpu.host: racks[rank] for gpu in hardware.gpus for rank in gpu.ranks if rank in racks}
    return {gpu.gpu_uuid: hosts.get(gpu.host, NO_RACK) for gpu in hardware.gpus}


def unsampled_gpus(hardware: Hardware, topology: Topology, *, by_rack: bool) -> dict[str, int]:
    """Return the number of GPUs with ranks but without samples, by host or rack."""
    missing = set(hardware.index.unsampled_ranks)
    found = {
        ((rack_of(place) or NO_RACK) if by_rack else place.host, bare(place.gpu_uuid))
        for place in topology.places
        if place.rank in missing and place.gpu_uuid is not None and place.host is not None
    }
    return Counter(group for group, _ in found)
