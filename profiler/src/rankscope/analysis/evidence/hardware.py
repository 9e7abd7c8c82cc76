"""GPU readings recorded by the host's exporter, assigned to steps of the rank that trains on the GPU.

A reading belongs to the step that the GPU's own rank was in at that moment. Both timestamps come from the clock of their
common host, so clocks of different hosts are never compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.possible import MOST_BYTES
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample, RankInfo

Values = NDArray[np.float64]

GAUGES: Final = (
    "utilization_ratio",
    "temperature_celsius",
    "power_watts",
    "sm_clock_hertz",
    "pcie_link_width",
    "pcie_link_generation",
    "nvlinks_down",
)
# Xid errors exclude those that programs cause: they are no evidence about the GPU.
COUNTERS: Final = ("xid_errors", "ecc_uncorrected_errors", "pcie_replays", "nvlink_errors")
REASONS: Final = (
    "gpu_idle",
    "applications_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
)
"""Reasons for a lowered clock that the exporter reports."""

MAX_SAMPLES: Final = 16_384
"""Maximum number of samples per GPU, about a day of readings every 5 s; longer runs keep every 2nd, 4th, … sample."""

_IDLE: Final = 0.1
"""Utilisation ratio below which a GPU is idle: it then lowers clock and link to save power, which is not a fault."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of one GPU in order of time; arrays are [samples], NaN where the GPU did not report a value."""

    unix_ns: NDArray[np.int64]
    values: dict[str, Values]
    """Values by name of the gauge or counter, or by ``reason.NAME`` (1 while the reason was active)."""
    simulated: bool = False

    def where(self, keep: NDArray[np.bool_]) -> Readings:
        """Return the readings for which ``keep`` [samples] is true."""
        return Readings(self.unix_ns[keep], {name: values[keep] for name, values in self.values.items()}, self.simulated)

    def known_values(self, name: str) -> Values:
        """Return the values of one name without missing ones."""
        values = self.values[name]
        return values[np.isfinite(values)]

    def busy(self) -> Readings:
        """Return the readings in which the GPU was not idle; a reading without utilisation counts as busy."""
        idle = (self.values["utilization_ratio"] < _IDLE) | (self.values["reason.gpu_idle"] == 1)
        return self.where(~idle)

    def rises(self, name: str) -> tuple[float, int | None] | None:
        """Return the increase of a counter and the time of its first increase (``None`` if it did not rise).

        A counter that fell was reset and counts from zero. Return ``None`` with fewer than two values.
        """
        values = self.values[name]
        at = np.flatnonzero(np.isfinite(values))
        if len(at) < 2:
            return None
        rise = np.diff(values[at])
        rise = np.where(rise < 0, values[at[1:]], rise)
        up = np.flatnonzero(rise > 0)
        return float(rise.sum()), int(self.unix_ns[at[1:][up[0]]]) if len(up) else None


@dataclass(slots=True)
class _ReadingBuffer:
    """Buffer for the readings of one GPU while samples are read."""

    stride: int = 1
    sample_count: int = 0
    times: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in (*GAUGES, *COUNTERS, *(f"reason.{reason}" for reason in REASONS))}
    )
    simulated: bool = False

    def add(self, sample: HardwareSample) -> None:
        self.sample_count += 1
        if (self.sample_count - 1) % self.stride:
            return
        self.times.append(sample.unix_ns)
        for name in (*GAUGES, *COUNTERS):
            value = getattr(sample, name)
            if name == "xid_errors" and value is not None:
                value -= sample.xid_errors_of_programs or 0
            self.columns[name].append(float("nan") if value is None else float(value))
        active = sample.throttle_reasons
        for reason in REASONS:
            self.columns[f"reason.{reason}"].append(float("nan") if active is None else float(reason in active))
        self.simulated = self.simulated or sample.simulated
        if len(self.times) > MAX_SAMPLES:
            self.stride *= 2
            self.times = self.times[::2]
            self.columns = {name: column[::2] for name, column in self.columns.items()}

    def readings(self) -> Readings:
        times = np.array(self.times, dtype=np.int64)
        order = np.argsort(times, kind="stable")
        values = {name: np.array(column, dtype=np.float64)[order] for name, column in self.columns.items()}
        return Readings(times[order], values, self.simulated)


def bare_uuid(uuid: str) -> str:
    """Return a uuid without ``GPU-`` or ``MIG-``: CUDA reports the uuid of a MIG device without marking it as MIG."""
    kind, _, bare_uuid = uuid.partition("-")
    return bare_uuid if kind in ("GPU", "MIG") else uuid


def readings_of(samples: Iterable[HardwareSample], wanted: Iterable[str], between_ns: tuple[int, int]) -> dict[str, Readings]:
    """Return the readings of the GPUs ``wanted`` (uuids) within ``between_ns``, without GPUs that have no readings.

    A MIG device gets the readings of its parent GPU. Samples of the parent hold the values that its MIG devices share: clock,
    heat, power, links and errors.
    """
    names = {bare_uuid(uuid): uuid for uuid in wanted}
    parents: dict[str, str] = {}
    histories: dict[str, _ReadingBuffer] = {}
    for sample in samples:
        if sample.gpu_uuid is None or sample.missing is not None or not between_ns[0] <= sample.unix_ns <= between_ns[1]:
            continue
        name = bare_uuid(sample.gpu_uuid)
        if name in names and sample.parent_uuid is not None:
            parents[name] = bare_uuid(sample.parent_uuid)
        elif name in names or name in parents.values():
            histories.setdefault(name, _ReadingBuffer()).add(sample)
    readings = {name: history.readings() for name, history in histories.items()}
    return {uuid: readings[at] for name, uuid in names.items() if (at := parents.get(name, name)) in readings}


def in_steps(readings: Readings, starts_ns: NDArray[np.int64], walls_us: Values, wanted: NDArray[np.bool_]) -> Readings:
    """Return the readings taken within the steps of the GPU's rank for which ``wanted`` is true; all arrays are [steps]."""
    recorded = np.flatnonzero(np.isfinite(walls_us) & (starts_ns > 0))
    if not len(recorded):
        return readings.where(np.zeros(len(readings.unix_ns), dtype=bool))
    steps = recorded[np.argsort(starts_ns[recorded], kind="stable")]
    at = np.searchsorted(starts_ns[steps], readings.unix_ns, side="right") - 1
    step = steps[np.maximum(at, 0)]
    inside = (at >= 0) & (readings.unix_ns - starts_ns[step] < walls_us[step] * 1000)
    return readings.where(inside & wanted[step])


_SAMPLES: Final = 256
"""Number of samples read per host: sizes do not change, and any round of samples has every GPU."""


def device_memory(reader: RunReader, infos: Mapping[int, RankInfo]) -> dict[int, int]:
    """Return the memory size in bytes per rank; ranks whose device is in no sample are left out."""
    wanted: dict[str, list[int]] = {}
    for rank, info in infos.items():
        if info.gpu_uuid is not None:
            wanted.setdefault(info.gpu_uuid, []).append(rank)
    bytes_of_rank: dict[int, int] = {}
    for host in {info.host for info in infos.values()} & set(reader.hosts()) if wanted else ():
        for sample in islice(reader.gpu_memory(host), _SAMPLES):
            if sample.memory_total_bytes is not None and 0 < sample.memory_total_bytes < MOST_BYTES:
                bytes_of_rank.update(dict.fromkeys(wanted.get(sample.gpu_uuid or "", ()), sample.memory_total_bytes))
    return bytes_of_rank
