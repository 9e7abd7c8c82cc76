"""Intake of the hardware samples of a run, also a live one. Rows are kept on disk, so memory does not grow with the run."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.hardware import bare_uuid
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.base.atomic_files import replace_file
from rankscope.dashboards.data.events import (
    LINKS,
    THROTTLES,
    EventFinder,
    HardwareEvent,
    HardwareEvents,
    StepClock,
    is_idle,
    most_important,
    on_steps,
)
from rankscope.dashboards.data.hardware import (
    CLOCK,
    GAUGES,
    INDEX,
    ROW,
    GaugeRange,
    HardwareIndex,
    LinkState,
    SampledGpu,
    in_steps,
    read_hardware,
)
from rankscope.dashboards.data.metrics import WHY_UNKNOWN, of_origin
from rankscope.dashboards.data.topology import natural_key
from rankscope.runs.records import HardwareSample, RankInfo

EVENTS: Final = "events.json"

MOST_MISSING: Final = 20
"""Most listed reasons for missing samples."""


_PACKED: Final = struct.Struct(f"<q{len(GAUGES)}f")
_NO_TIME: Final = 1 << 63
"""Nanoseconds that no clock reaches; times beyond do not fit into 64 bits."""
_LARGEST: Final = float(np.finfo(np.float32).max)
_NAN: Final = float("nan")

Values = NDArray[np.float32]


def _finite_reading(value: float | None) -> float:
    """Return a reading, NaN if it is missing or impossibly large."""
    return _NAN if value is None or abs(value) > _LARGEST else float(value)


@dataclass(slots=True)
class _GpuSamples:
    """Accumulated samples of one GPU."""

    host: str
    gpu_uuid: str
    file: str
    finder: EventFinder
    index: int | None = None
    parent_uuid: str | None = None
    samples: int = 0
    first: int | None = None
    last: int | None = None
    new: bytearray = field(default_factory=bytearray)
    """Packed rows that are not in the file yet."""
    gauges: dict[str, GaugeRange] = field(default_factory=dict)
    memory_total_bytes: int | None = None
    throttle_samples: int = 0
    throttled_samples: int = 0
    throttled: Counter[str] = field(default_factory=Counter)
    links: dict[str, LinkState] = field(default_factory=dict)

    def _note(self, sample: HardwareSample) -> None:
        """Update the statistics over all samples."""
        if sample.memory_total_bytes is not None:
            self.memory_total_bytes = sample.memory_total_bytes
        if sample.throttle_reasons is not None:
            self.throttle_samples += 1
            active = THROTTLES.keys() & sample.throttle_reasons
            self.throttled.update(active)
            self.throttled_samples += bool(active)
        for link in LINKS:
            value: int | None = getattr(sample, link)
            if value is not None and (link == "nvlinks_down" or not is_idle(sample)):
                state = self.links.get(link, LinkState(value, value, value))
                self.links[link] = LinkState(value, min(value, state.lowest), max(value, state.highest))

    def add(self, sample: HardwareSample) -> None:
        if not -_NO_TIME <= sample.unix_ns < _NO_TIME:
            return
        if sample.missing is None:
            self.finder.add(sample)
            self.index, self.parent_uuid = sample.gpu_index, sample.parent_uuid
            self._note(sample)
        values = [_finite_reading(getattr(sample, gauge)) for gauge in GAUGES]
        self.new += _PACKED.pack(sample.unix_ns, *values)
        self.samples += 1
        self.first = sample.unix_ns if self.first is None else min(self.first, sample.unix_ns)
        self.last = sample.unix_ns if self.last is None else max(self.last, sample.unix_ns)

    def write(self, folder: Path) -> None:
        """Append the new rows to the file."""
        rows = np.frombuffer(self.new, ROW)
        for gauge in GAUGES:
            finite = rows[gauge][np.isfinite(rows[gauge])]
            if len(finite):
                low, high, last = float(finite.min()), float(finite.max()), float(finite[-1])
                range_ = self.gauges.get(gauge)
                self.gauges[gauge] = (
                    GaugeRange(min(low, range_.lowest), max(high, range_.highest), last)
                    if range_
                    else GaugeRange(low, high, last)
                )
        with (folder / self.file).open("ab") as file:
            file.write(self.new)
        self.new = bytearray()


class SampleWriter:
    """Writer of samples into ``folder``, which is emptied first; ``hardware.stored`` reads the result."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gpus: dict[tuple[str, str], _GpuSamples] = {}
        self._missing: dict[str, None] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.rows"):
            leftover.unlink()

    def add(self, host: str, samples: Iterable[HardwareSample]) -> None:
        """Add samples of a host in the order they were taken."""
        for sample in samples:
            if sample.missing is not None and len(self._missing) < MOST_MISSING:
                self._missing[f"{host}: {sample.missing}"] = None
            if sample.gpu_uuid is not None:
                self._of(host, sample.gpu_uuid).add(sample)
            else:  # about all GPUs of the host
                for (where, _), sampled in self._gpus.items():
                    if where == host:
                        sampled.add(sample)
        for (where, _), sampled in self._gpus.items():
            if where == host and sampled.new:
                sampled.write(self._folder)

    def _of(self, host: str, uuid: str) -> _GpuSamples:
        sampled = self._gpus.get((host, uuid))
        if sampled is None:
            sampled = self._gpus[host, uuid] = _GpuSamples(host, uuid, f"{len(self._gpus)}.rows", EventFinder(host, uuid))
        return sampled

    def publish(self, infos: Mapping[int, RankInfo], clocks: Mapping[str, StepClock]) -> None:
        """Make the samples visible to readers. ``clocks``: host to the step clock of one of its ranks, which dates the events."""
        gpus = sorted(
            self._gpus_of_ranks(infos), key=lambda gpu: (natural_key(gpu.host), gpu.index is None, gpu.index or 0, gpu.gpu_uuid)
        )
        sampled = {rank for gpu in gpus for rank in gpu.ranks}
        index = HardwareIndex(
            gpus=gpus,
            why_none=None if gpus else _why_none(self._missing),
            missing=list(self._missing),
            unsampled_ranks=[rank for rank, info in infos.items() if info.gpu_uuid is not None and rank not in sampled],
            clock_host=self._write_clock(clocks),
        )
        events = msgspec.structs.replace(on_steps(self._events(gpus), clocks), why_none=index.why_none)
        replace_file(self._folder / INDEX, msgspec.json.encode(index), sync=False)
        replace_file(self._folder / EVENTS, msgspec.json.encode(events), sync=False)

    def _write_clock(self, clocks: Mapping[str, StepClock]) -> str | None:
        """Write the clock of the host with the most step starts and return that host; ``None``: no host has any."""
        host = max(clocks, key=lambda name: np.count_nonzero(clocks[name].starts_ns), default=None)
        if host is None or not clocks[host].starts_ns.any():
            return None
        has_start = clocks[host].starts_ns > 0
        steps, first = np.unique(clocks[host].steps[has_start], return_index=True)
        # Times must ascend even if the clock was set back.
        starts = np.maximum.accumulate(clocks[host].starts_ns[has_start][first])
        replace_file(self._folder / CLOCK, np.stack([steps, starts]).tobytes(), sync=False)
        return host

    def _gpus_of_ranks(self, infos: Mapping[int, RankInfo]) -> Iterator[SampledGpu]:
        ranks: dict[tuple[str, str], list[int]] = {}
        for rank, info in infos.items():
            if info.gpu_uuid is not None:
                ranks.setdefault((info.host, bare_uuid(info.gpu_uuid)), []).append(rank)
        for (host, uuid), sampled in self._gpus.items():
            ranks_of_gpu = sorted(ranks.get((host, bare_uuid(uuid)), []))
            yield SampledGpu(
                gpu_uuid=uuid,
                host=host,
                index=sampled.index,
                name=infos[ranks_of_gpu[0]].gpu_name if ranks_of_gpu else None,
                parent_uuid=sampled.parent_uuid,
                ranks=ranks_of_gpu,
                samples=sampled.samples,
                first_unix_ns=sampled.first,
                last_unix_ns=sampled.last,
                gauges=dict(sampled.gauges),
                memory_total_bytes=sampled.memory_total_bytes,
                throttle_samples=sampled.throttle_samples,
                throttled_samples=sampled.throttled_samples,
                throttled=dict(sorted(sampled.throttled.items())),
                rises=dict(sampled.finder.rises),
                links=dict(sampled.links),
                simulated=sampled.finder.simulated,
                file=sampled.file,
            )

    def _events(self, gpus: Sequence[SampledGpu]) -> HardwareEvents:
        events: list[HardwareEvent] = []
        left_out = 0
        for gpu in gpus:
            finder = self._gpus[gpu.host, gpu.gpu_uuid].finder
            left_out += finder.left_out
            rank = gpu.ranks[0] if gpu.ranks else None
            events += [msgspec.structs.replace(event, rank=rank) for event in finder.events_so_far()]
        return most_important(events, left_out)


def host_clocks(infos: Mapping[int, RankInfo], table: StepTable) -> dict[str, StepClock]:
    """Return host to the step clock of its first rank that has a step record."""
    clocks: dict[str, StepClock] = {}
    for row, rank in enumerate(table.ranks):
        info = infos.get(int(rank))
        if info is not None and info.host not in clocks and table.starts(row).any():
            clocks[info.host] = StepClock(table.steps, table.starts(row))
    return clocks


def _why_none(missing: Iterable[str]) -> str:
    missing_text = "; ".join(missing)
    return f"{WHY_UNKNOWN['samples']}{f' ({missing_text})' if missing_text else ''}"


def sample_values(folder: Path, infos: Mapping[int, RankInfo], table: StepTable) -> dict[str, Values]:
    """Return metrics of the ranks' GPUs in the steps of ``table``, [ranks, steps], from samples that ``SampleWriter`` published.
    Metrics without any value are left out.

    A step has its worst sample, or the last one before it. All times are by the clock of the host of rank and GPU.
    """
    hardware = read_hardware(folder)
    gpus = {(gpu.host, bare_uuid(gpu.gpu_uuid)): gpu for gpu in hardware.gpus}
    matrices: dict[str, Values] = {}
    for row, rank in enumerate(table.ranks):
        info = infos.get(int(rank))
        gpu = None if info is None or info.gpu_uuid is None else gpus.get((info.host, bare_uuid(info.gpu_uuid)))
        if gpu is None:
            continue
        parent = None if gpu.parent_uuid is None else gpus.get((gpu.host, bare_uuid(gpu.parent_uuid)))
        walls = table.of_rank("wall_us", row).astype(np.float64)
        for metric in of_origin("samples"):
            source = next(
                (source_gpu for source_gpu in (gpu, parent) if source_gpu is not None and metric in source_gpu.gauges), None
            )
            if source is not None:
                if metric not in matrices:
                    matrices[metric] = np.full((len(table.ranks), len(table.steps)), np.nan, np.float32)
                matrices[metric][row] = in_steps(hardware.rows(source), metric, table.starts(row), walls)
    return {metric: values for metric, values in matrices.items() if np.isfinite(values).any()}
