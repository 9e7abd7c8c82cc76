"""Work of a rank: its events by kind, its annotated steps, and the partition of a window's time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.detail import Partition
from rankscope.analysis.trace.categories import COPY, DEVICE_NOTE, KERNEL, LAUNCHED, NOTE, OPERATOR
from rankscope.analysis.trace.classify import (
    CPU_COMMUNICATION,
    WorkKind,
    asks_for_communication,
    classify_kernel,
    direction_of,
    is_cpu_work,
    is_work,
)
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import (
    Spans,
    by_key,
    clip,
    distinct,
    intersect,
    join,
    measure,
    middles,
    positions_of,
    subtract,
    union,
)
from rankscope.analysis.trace.numbering import are_named


class Work(msgspec.Struct, frozen=True):
    """Work of one rank, as merged sets of absolute nanoseconds. The sets may overlap each other."""

    compute: Spans
    communication: Spans
    copies: Spans

    def clip(self, start: int, end: int) -> Work:
        """Return the part inside the window ``[start, end)``."""
        return Work(clip(self.compute, start, end), clip(self.communication, start, end), clip(self.copies, start, end))

    def busy(self) -> Spans:
        """Return the time of any work as one merged set."""
        return join(self.compute, self.communication, self.copies)

    def extent(self) -> tuple[int, int] | None:
        """Return the first start and the last end of all work, or ``None`` when there is none."""
        busy = self.busy()
        return (int(busy[0, 0]), int(busy[-1, 1])) if len(busy) else None


def partition(work: Work, start: int, end: int) -> Partition:
    """Partition the window ``[start, end)`` (nanoseconds); work outside it does not count."""
    assert end >= start, "a window cannot end before it starts"
    inside = work.clip(start, end)
    compute = measure(inside.compute)
    communication = measure(inside.communication)
    overlap = measure(intersect(inside.communication, inside.compute))
    exposed_communication = measure(subtract(inside.communication, inside.compute))
    busy = join(inside.compute, inside.communication)
    exposed_copies = measure(subtract(inside.copies, busy))
    idle = (end - start) - measure(join(busy, inside.copies))
    # Whole nanoseconds, so these hold exactly.
    assert overlap + exposed_communication == communication
    assert compute + exposed_communication + exposed_copies + idle == end - start
    return Partition(
        window_us=(end - start) / 1000,
        compute_us=compute / 1000,
        communication_us=communication / 1000,
        overlap_us=overlap / 1000,
        exposed_communication_us=exposed_communication / 1000,
        memcpy_us=measure(inside.copies) / 1000,
        exposed_memcpy_us=exposed_copies / 1000,
        idle_us=idle / 1000,
    )


_STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})")


class Steps(msgspec.Struct, frozen=True):
    """Annotated steps: their numbers and host intervals in nanoseconds, ascending in time."""

    numbers: list[int]
    thread: int
    """Thread of the annotations."""
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def position(self, time: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return, per time, the position of the step it falls in, or -1."""
        at = np.searchsorted(self.start, time, side="right") - 1
        inside = (at >= 0) & (time < self.end[np.maximum(at, 0)])
        return np.where(inside, at, -1)


def annotated_steps(trace: Trace) -> Steps | None:
    """Return the steps with a ``ProfilerStep#N`` annotation; ``None`` without any."""
    by_name = [int(match.group(1)) if (match := _STEP.fullmatch(name)) else -1 for name in trace.names]
    numbers_of_rows = np.array(by_name, dtype=np.int64)[trace.name]
    # A trace of device activities alone has only the device's copies of the annotations.
    for category in (NOTE, DEVICE_NOTE):
        rows = np.flatnonzero((trace.category == category) & (numbers_of_rows >= 0))
        if len(rows):
            break
    else:
        return None
    threads = trace.thread[rows]
    thread = int(np.bincount(threads).argmax())
    rows = rows[threads == thread]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    numbers = [int(number) for number in numbers_of_rows[rows]]
    start, end = trace.start[rows], trace.end[rows].copy()
    for position in range(len(rows) - 1):
        # Consecutive steps have no gap between them; a pause of the profiler leaves one.
        if numbers[position + 1] == numbers[position] + 1 or end[position] > start[position + 1]:
            end[position] = start[position + 1]
    return Steps(numbers, thread, start, end)


NO_WORK: Final = -1
KINDS: Final[tuple[WorkKind, ...]] = ("compute", "communication", "memcpy")
COMPUTE, COMMUNICATION, MEMCPY = range(3)


class WorkEvents(msgspec.Struct, frozen=True, dict=True):
    """Events of a trace that are work.

    In a trace with device work, compute is the kernels on the device; on a CPU build it is the operators. Communication of CPU
    libraries (gloo) counts in both, so that a run that computes on a GPU and communicates through gloo is complete.
    """

    rows: NDArray[np.intp]
    """Rows of the trace, in order of their start."""
    kind: NDArray[np.int8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    launch: NDArray[np.int64]
    """Launch time: the start of the linked launch call, or the event's own start if no call is linked."""
    launch_row: NDArray[np.intp]
    """Row of the call that launched the event; its own row for events on the CPU; -1 if no call is linked."""

    def is_on_device(self, trace: Trace) -> NDArray[np.bool_]:
        """Return the mask of the events that ran on an accelerator."""
        return trace.category[self.rows] <= COPY

    @cached_property
    def work(self) -> Work:
        """All events as merged sets of intervals, one per kind."""
        return Work(*(union(self.start[self.kind == kind], self.end[self.kind == kind]) for kind in range(len(KINDS))))


def work_events(trace: Trace, communication: re.Pattern[str] | None = None) -> WorkEvents:
    """Classify every event of the trace and return those that are work.

    Communication is, in order of precedence: kernels with linked communication metadata; kernels whose name matches
    ``communication``; kernels by the table of names. Copies between devices that a collective launched count, too: copy engines
    run collectives in this way.
    """
    kind = np.full(len(trace.start), NO_WORK, dtype=np.int8)
    kernels = trace.category == KERNEL
    by_name = np.full(len(trace.names), NO_WORK, dtype=np.int8)
    for number in distinct(trace.name[kernels]):
        name = trace.names[number]
        if communication is not None and communication.search(name) is not None:
            by_name[number] = COMMUNICATION
        elif is_work(name):
            by_name[number] = KINDS.index(classify_kernel(name))
    kind[kernels] = by_name[trace.name[kernels]]
    # Metadata from the communication library overrides the kernel's name.
    for row in trace.communication_args:
        if kernels[row]:
            kind[row] = COMMUNICATION
    kind[trace.category == COPY] = MEMCPY
    calls = _launching_rows(trace)
    kind[copy_engine_rows(trace, calls)] = COMMUNICATION
    kind[trace.rows(NOTE, CPU_COMMUNICATION)] = COMMUNICATION
    if trace.device_kind == "cpu":
        kind[outermost(trace, (trace.category == OPERATOR) & trace.named(is_cpu_work))] = COMPUTE
    rows = np.flatnonzero(kind != NO_WORK)
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    launch_row = calls[rows]
    return WorkEvents(
        rows=rows,
        kind=kind[rows],
        start=trace.start[rows],
        end=trace.end[rows],
        launch=np.where(launch_row >= 0, trace.start[launch_row], trace.start[rows]),
        launch_row=launch_row,
    )


def beside_the_main_stream(
    device: NDArray[np.int16], stream: NDArray[np.int64], kind: NDArray[np.int8], length: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return the mask of events on other streams than the one that computes longest on their device."""
    is_off_main = np.ones(len(device), dtype=bool)
    for on_device in by_key(device):
        groups = [on_device[rows] for rows in by_key(stream[on_device])]
        main = max(groups, key=lambda rows: int(length[rows[kind[rows] == COMPUTE]].sum()))
        is_off_main[main] = False
    return is_off_main


class KernelTime(msgspec.Struct, frozen=True):
    """Kernel of one name and grid: how often it ran, and for how long in total and typically."""

    name: str
    grid: str
    """Grid as the trace spells it; empty where it has none."""
    calls: int
    total_us: float
    median_us: Mapping[int, float] = {}
    """Median duration by the annotated step that launched it."""


_MOST_KERNELS: Final = 512
"""Largest number of kernels kept by ``compute_kernels``, the costliest ones."""


def compute_kernels(trace: Trace, events: WorkEvents) -> list[KernelTime]:
    """Return the kernels that compute by name and grid, costliest first; empty for traces of CPU builds."""
    computes = (events.kind == COMPUTE) & events.is_on_device(trace)
    rows = events.rows[computes]
    if not len(rows):
        return []
    grids = len(trace.grids) + 1
    keys, number = np.unique(trace.name[rows].astype(np.int64) * grids + trace.grid[rows] + 1, return_inverse=True)
    took = (events.end[computes] - events.start[computes]).astype(np.float64) / 1000
    calls = np.bincount(number)
    total = np.bincount(number, weights=took)
    costliest = np.argsort(-total, kind="stable")[:_MOST_KERNELS]
    medians = _medians_by_step(trace, events.launch[computes], number, took)
    kernels: list[KernelTime] = []
    for at in costliest.tolist():
        name, grid = divmod(int(keys[at]), grids)
        spelling = trace.grids[grid - 1] if grid else ""
        kernels.append(KernelTime(trace.names[name], spelling, int(calls[at]), float(total[at]), medians.get(at, {})))
    return kernels


def _medians_by_step(
    trace: Trace, launch: NDArray[np.int64], number: NDArray[np.intp], took: NDArray[np.float64]
) -> dict[int, dict[int, float]]:
    """Return the median of ``took`` by ``number`` and by the annotated step of ``launch``."""
    steps = annotated_steps(trace)
    medians: dict[int, dict[int, float]] = {}
    if steps is None:
        return medians
    position = steps.position(launch)
    inside = np.flatnonzero(position >= 0)
    first, low, high = middles(took[inside], number[inside], position[inside])
    rows = inside[first]
    for at, step, median in zip(number[rows].tolist(), position[rows].tolist(), ((low + high) / 2).tolist(), strict=True):
        medians.setdefault(at, {})[steps.numbers[step]] = median
    return medians


def outermost(trace: Trace, wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the rows of the wanted events that lie inside no other wanted event of their thread.

    Example: ``aten::linear``, not the ``aten::t`` inside it.
    """
    rows = np.flatnonzero(wanted)
    order = np.lexsort((-trace.end[rows], trace.start[rows], trace.thread[rows]))
    rows = rows[order]
    keep = np.ones(len(rows), dtype=bool)
    for thread in distinct(trace.thread[rows]):
        on_thread = np.flatnonzero(trace.thread[rows] == thread)
        ends = np.maximum.accumulate(trace.end[rows[on_thread]])
        keep[on_thread[1:]] = trace.start[rows[on_thread[1:]]] >= ends[:-1]
    return rows[keep]


def _launching_rows(trace: Trace) -> NDArray[np.intp]:
    """Return, per row, the row of the CPU call that launched it: itself for events on the CPU, -1 if no call is linked."""
    launching = np.arange(len(trace.start), dtype=np.intp)
    device, calls = np.flatnonzero(trace.category <= COPY), trace.rows(LAUNCHED)
    call = positions_of(trace.correlation[device], trace.correlation[calls])
    launching[device] = np.where(call >= 0, calls[call] if len(calls) else -1, -1)
    return launching


def copy_engine_rows(trace: Trace, calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of copies between devices that were launched inside a collective on the calling thread.

    ``calls``: per row, the row of the launching call.
    """
    copies = np.flatnonzero((trace.category == COPY) & (calls >= 0))
    copies = copies[are_named(trace.names, trace.name[copies], lambda name: direction_of(name) == "peer to peer")]
    return copies[within(trace, calls[copies], np.flatnonzero(requests_communication(trace)))] if len(copies) else copies


def requests_communication(trace: Trace) -> NDArray[np.bool_]:
    """Return which events are those in which a calling thread requests communication on a device, [events]."""
    return trace.named(asks_for_communication) & np.isin(trace.category, (NOTE, OPERATOR))


def enclosing(trace: Trace, rows: NDArray[np.intp], frames: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, per row, the position of the frame on its thread in which it starts, or -1.

    ``frames`` of one thread must not overlap.
    """
    if not len(frames):
        return np.full(len(rows), -1, dtype=np.intp)
    both = np.concatenate((frames, rows))
    # Sorted by thread and start, frames before rows that start at the same time: a row's frame is the last one before it.
    order = np.lexsort((np.arange(len(both)) >= len(frames), trace.start[both], trace.thread[both]))
    last = np.maximum.accumulate(np.where(order < len(frames), np.arange(len(order)), -1))
    at = np.empty(len(both), dtype=np.intp)
    at[order] = np.where(last < 0, -1, order[last])
    position = at[len(frames) :]
    frame = frames[position]
    inside = (position >= 0) & (trace.thread[frame] == trace.thread[rows]) & (trace.start[rows] < trace.end[frame])
    return np.where(inside, position, -1)


def within(trace: Trace, rows: NDArray[np.intp], frames: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return the mask of rows that start inside any of the ``frames`` of their thread; frames may overlap."""
    if not len(frames):
        return np.zeros(len(rows), dtype=bool)
    both = np.concatenate((frames, rows))
    ends = np.unique(trace.end[frames])
    rank = np.concatenate((np.searchsorted(ends, trace.end[frames]) + 1, np.zeros(len(rows), dtype=np.intp)))
    _, thread = np.unique(trace.thread[both], return_inverse=True)
    order = np.lexsort((rank == 0, trace.start[both], thread))
    # Running maximum of the ends of frames begun on the thread; each thread's numbers lie above those of earlier threads.
    base = thread * (len(ends) + 1)
    latest = np.empty(len(both), dtype=np.intp)
    latest[order] = np.maximum.accumulate((base + rank)[order])
    end = (latest - base)[len(frames) :]
    inside: NDArray[np.bool_] = (end > 0) & (trace.start[rows] < ends[end - 1])
    return inside
