"""Own times of ranks that compute on a device, from their traces.

A step's own time is the device's time for it minus the communication that no compute hides. That communication is waiting for
other ranks, or transfer. So it covers every way to wait inside streams, also those in which no collective can be matched:
pipelines, uneven all-to-all. What remains is compute, copies, and the time in which the host gives the device nothing to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.stages import stages_of_records
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.waits.savings import Savings
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.evidence.step_table.steps import Matrix
from rankscope.analysis.result.cause import MORE_WORK
from rankscope.analysis.statistics import relative_excess
from rankscope.analysis.trace.annotations import HostTimes
from rankscope.analysis.trace.work import KernelTime
from rankscope.runs.records import StepBreakdown


class DeviceTimes(msgspec.Struct, frozen=True):
    """Times of one rank, from its trace."""

    by_step: Sequence[StepBreakdown]
    kernels: Sequence[KernelTime] = ()
    """Kernels that compute."""
    host_us: HostTimes | None = None
    """Time that the host kept the device waiting in phases and activities, by step; ``None`` without annotations of it."""
    exchanged: int | None = None
    """Rows, such as tokens, that it sent or received in uneven all-to-all, the larger of both per operation; ``None`` without
    any."""
    stage: int | None = None
    """Pipeline stage, see ``collectives/stages.py``; ``None`` without a pipeline."""

    @property
    def own_us(self) -> dict[int, float]:
        """Own time of each step whose device work is complete."""
        return {row.step: row.window_us - row.exposed_communication_us for row in self.by_step if not row.truncated}


def times_of_windows(windows: Mapping[int, Reduction], world_size: int | None) -> dict[int, DeviceTimes]:
    """Return the times of profiled steps on devices by rank; empty unless all ranks of the job have some."""
    stages = stages_of_records({rank: reduction.collectives for rank, reduction in windows.items()})
    times = {
        rank: DeviceTimes(rows, stage=stages.get(rank))
        for rank, reduction in windows.items()
        if (rows := [row for row in reduction.breakdowns if row.device_kind != "cpu"])
    }
    return times if len(times) >= max(world_size or 0, len(windows)) else {}


@dataclass(frozen=True, slots=True)
class DeviceOwnTimes:
    """Own times of ranks that do the same work; satisfies ``OwnTimes``."""

    ranks: list[int]
    steps: list[int]
    own: Matrix
    """Own time in microseconds, [ranks, steps]."""
    wall_us: float
    """Mean time of a step on these ranks."""
    savings: Savings | None = None
    """Savings at the matched collectives of these steps; ``None`` without any."""


def device_own_times(times: Mapping[int, DeviceTimes], blame: Blame) -> list[DeviceOwnTimes]:
    """Return the own times of each group of ranks that do the same work, at the steps that all of the group have.

    ``blame``: waits at the matched collectives of the same steps.
    """
    own_times = []
    for ranks in _same_work(times):
        own = {rank: times[rank].own_us for rank in ranks}
        steps = sorted(set.intersection(*(set(row) for row in own.values())))
        if len(ranks) > 1 and steps:
            matrix = np.array([[own[rank][step] for step in steps] for rank in ranks])
            walls = [row.window_us for rank in ranks for row in times[rank].by_step if not row.truncated]
            savings = Savings(blame, ranks, steps) if blame.steps else None
            own_times.append(DeviceOwnTimes(ranks, steps, matrix, float(np.mean(walls)), savings))
    return own_times


def _same_work(times: Mapping[int, DeviceTimes]) -> list[list[int]]:
    """Group ranks by pipeline stage, and stages that run the same kernels as often, as those in the middle of a model do."""
    stages: dict[int | None, list[int]] = {}
    for rank in sorted(times):
        stages.setdefault(times[rank].stage, []).append(rank)
    groups: list[list[int]] = []
    for ranks in stages.values():
        alike = next((group for group in groups if _alike(times[ranks[0]], times[group[0]])), None)
        if alike is None:
            groups.append(list(ranks))
        else:
            alike.extend(ranks)
    return [sorted(group) for group in groups]


MATTERS: Final = 0.005
"""Share of the compute from which a kernel matters when the work of two ranks is compared."""
_SAME_CALLS: Final = 0.02
"""Relative difference of calls up to which two ranks do the same work."""


def _alike(times: DeviceTimes, other: DeviceTimes) -> bool:
    """Return whether two ranks launch the same kernels equally often; false where they are not known."""
    (calls, mattering), (other_calls, other_mattering) = _calls(times), _calls(other)
    counts = [(calls.get(name, 0), other_calls.get(name, 0)) for name in mattering | other_mattering]
    return bool(counts) and all(
        abs(own_calls - calls_of_other) <= _SAME_CALLS * max(own_calls, calls_of_other) for own_calls, calls_of_other in counts
    )


def _calls(times: DeviceTimes) -> tuple[dict[str, int], set[str]]:
    """Return the number of calls of each kernel by name, and the names of those that matter."""
    total = sum(kernel.total_us for kernel in times.kernels)
    calls: dict[str, int] = {}
    took: dict[str, float] = {}
    for kernel in times.kernels:
        calls[kernel.name] = calls.get(kernel.name, 0) + kernel.calls
        took[kernel.name] = took.get(kernel.name, 0.0) + kernel.total_us
    return calls, {name for name, time in took.items() if time >= MATTERS * total}


_SCALING: Final = 0.05
"""Share of the compute that such kernels must have to give the work of the others."""


def more_work(times: Mapping[int, DeviceTimes], rank: int, peers: Sequence[int]) -> float | None:
    """Return by how much more work ``rank`` has than the median of ``peers``: 0.4 for 40 % more. ``None`` if that is unknown.

    Work is the number of blocks that kernels of one name are launched with, weighted by the time of these kernels on the peers.
    More blocks count as far as they take more time: else they are smaller ones. A kernel written to fill the device has the same
    number of blocks for any amount of work. So where other kernels have more blocks, and all kernels together take longer in
    proportion, those others give the work.
    """
    others = [_blocks(times[peer]) for peer in peers]
    rows: list[tuple[float, float, float]] = []
    for name, (count, total) in _blocks(times[rank]).items():
        of_peers = [blocks[name] for blocks in others if name in blocks]
        if 2 * len(of_peers) <= len(others):
            continue
        counts, totals = zip(*of_peers, strict=True)
        longer, more = relative_excess(total, totals), relative_excess(count, counts)
        if longer is not None and more is not None:
            rows.append((float(np.median(totals)), longer, more))
    if not rows:
        return None
    took_us, longer_by, more_by = np.array(rows).T
    mean = float(np.average(np.minimum(more_by, np.maximum(longer_by, 0.0)), weights=took_us))
    scales = more_by >= MORE_WORK
    if took_us[scales].sum() < _SCALING * took_us.sum():
        return mean
    by_these = float(np.average(more_by[scales], weights=took_us[scales]))
    overall = float(np.average(longer_by, weights=took_us))
    return max(mean, by_these) if abs(by_these - overall) <= 0.5 * overall else mean


def more_rows(times: Mapping[int, DeviceTimes], rank: int, peers: Sequence[int]) -> float | None:
    """Return by how many more rows ``rank`` exchanged in uneven all-to-all than the median of ``peers``, like ``more_work``."""
    of_rank = times[rank].exchanged
    of_peers = [rows for peer in peers if (rows := times[peer].exchanged) is not None]
    return None if of_rank is None else relative_excess(of_rank, of_peers)


def _blocks(times: DeviceTimes) -> dict[str, tuple[int, float]]:
    """Return the number of blocks and the time of each kernel, by name; without kernels whose grids are unknown."""
    by_name: dict[str, tuple[int, float]] = {}
    for kernel in times.kernels:
        sizes = [int(size) for size in re.findall(r"\d{1,12}", kernel.grid)]
        blocks, took = by_name.get(kernel.name, (0, 0.0))
        if sizes:
            by_name[kernel.name] = (blocks + kernel.calls * math.prod(sizes), took + kernel.total_us)
    return by_name
