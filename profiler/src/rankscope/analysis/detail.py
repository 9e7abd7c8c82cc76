"""Where the time of a trace went, in detail: what its events tell beyond the partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.breakdown import Work, partition
from rankscope.analysis.classes import class_parts, unclassified
from rankscope.analysis.contention import contention, same_work
from rankscope.analysis.copies import copy_parts
from rankscope.analysis.detail_result import Contention, DevicePart, RankDetail, Recompute, WindowDetail
from rankscope.analysis.grouping import by_key
from rankscope.analysis.intervals import Spans, covered, join, measure, subtract, union
from rankscope.analysis.kernel_classes import CLASS_NAMES, COMMUNICATION_CLASS, OPTIMIZER, OTHER, kernel_class
from rankscope.analysis.launches import Idle, Launches, idle_of, launch_part, launches_of
from rankscope.analysis.recompute import recomputing_rows
from rankscope.analysis.streams import beside_the_main_stream, known, stream_parts
from rankscope.analysis.traces import COPY, NOTE, Trace
from rankscope.analysis.work import COMMUNICATION, COMPUTE, MEMCPY, WorkEvents, enclosing, within
from rankscope.runs.records import StepBreakdown

MAX_STEPS: Final = 64
"""Steps whose details are kept, the first ones."""

_LABELS: Final = [*CLASS_NAMES, OTHER, COMMUNICATION_CLASS]
_NO_LABEL: Final = -1
_OPTIMIZER_STEP: Final = "Optimizer.step#"


@dataclass(frozen=True, slots=True)
class _Facts:
    """One entry per event that is work, in order of start; sets and rows of the whole trace. Times are nanoseconds."""

    names: list[str]
    kind: NDArray[np.int8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    same: NDArray[np.int64]
    """Equal for kernels that do the same work."""
    size: NDArray[np.int64]
    device: NDArray[np.int16]
    stream: NDArray[np.int64]
    on_device: NDArray[np.bool_]
    is_copy: NDArray[np.bool_]
    label: NDArray[np.int64]
    beside: NDArray[np.bool_]
    """Not on the main compute stream of the device."""
    again: NDArray[np.intp] | None
    """Which forward operator inside backward asked for it, -1 where none; ``None`` where it cannot be known."""
    under: NDArray[np.int64]
    """How much of it lies under communication of its own device."""
    hides: Spans
    """Compute and communication of all devices."""
    launches: Launches
    idle: Idle

    @classmethod
    def of(cls, trace: Trace, events: WorkEvents, bounds: tuple[int, int]) -> Self:
        rows = events.rows
        on_device = events.is_on_device(trace)
        caller = events.launch_row
        called = np.flatnonzero(caller >= 0)
        optimizing = np.zeros(len(rows), dtype=bool)
        is_step = np.array([name.startswith(_OPTIMIZER_STEP) for name in trace.names], dtype=bool)
        optimizing[called] = within(trace, caller[called], np.flatnonzero((trace.category == NOTE) & is_step[trace.name]))
        device, stream = trace.device[rows], trace.stream[rows]
        work = events.work()
        busy = join(work.compute, work.communication, work.copies)
        return cls(
            names=trace.names,
            kind=events.kind,
            start=events.start,
            end=events.end,
            name=trace.name[rows],
            same=same_work(trace.name[rows], trace.grid[rows], device, stream),
            size=_sizes(trace, rows, caller),
            device=np.where(on_device, device, -1).astype(np.int16),
            stream=stream,
            on_device=on_device,
            is_copy=trace.category[rows] == COPY,
            label=_labels(trace, events, optimizing),
            beside=on_device & beside_the_main_stream(device, stream, events.kind, events.end - events.start),
            again=_again(trace, events),
            under=_under_communication(device, events),
            hides=join(work.compute, work.communication),
            launches=launches_of(trace, events),
            idle=idle_of(trace, events, subtract(np.array([bounds], dtype=np.int64), busy)),
        )


def _labels(trace: Trace, events: WorkEvents, optimizing: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Index of the class of every event, ``_NO_LABEL`` for copies. What an optimizer's step launched is the optimizer's."""
    name = trace.name[events.rows]
    computes = events.kind == COMPUTE
    by_name = np.full(len(trace.names), _NO_LABEL, dtype=np.int64)
    for one in np.unique(name[computes]):
        by_name[one] = _LABELS.index(kernel_class(trace.names[one]))
    label = np.full(len(name), _NO_LABEL, dtype=np.int64)
    label[computes] = by_name[name[computes]]
    label[computes & optimizing] = _LABELS.index(OPTIMIZER)
    label[events.kind == COMMUNICATION] = _LABELS.index(COMMUNICATION_CLASS)
    return label


def _again(trace: Trace, events: WorkEvents) -> NDArray[np.intp] | None:
    rerun = recomputing_rows(trace)
    linked = events.launch_row >= 0
    # Where work runs on a device, the calls for that are what has to be known.
    if rerun is None or not (linked & (events.is_on_device(trace) | (not trace.has_device_work))).any():
        return None
    called = np.flatnonzero(linked)
    again = np.full(len(events.rows), -1, dtype=np.intp)
    again[called] = enclosing(trace, events.launch_row[called], rerun)
    return again


def _under_communication(device: NDArray[np.int16], events: WorkEvents) -> NDArray[np.int64]:
    under = np.zeros(len(device), dtype=np.int64)
    for rows in by_key(device):
        talks = rows[events.kind[rows] == COMMUNICATION]
        under[rows] = covered(events.start[rows], events.end[rows], union(events.start[talks], events.end[talks]))
    return under


def _sizes(trace: Trace, rows: NDArray[np.intp], caller: NDArray[np.intp]) -> NDArray[np.int64]:
    """Bytes that an event, or else the call that launched it alone, says it moves."""
    size = trace.bytes[rows].copy()
    _, where, counts = np.unique(caller, return_inverse=True, return_counts=True)
    silent = (size < 0) & (caller >= 0) & (counts[where] == 1)
    size[silent] = trace.bytes[caller[silent]]
    return size


def detail_of(trace: Trace, events: WorkEvents, window: StepBreakdown, steps: Sequence[StepBreakdown]) -> RankDetail:
    """The whole ``window`` of a file, and its ``steps`` as far as they are annotated."""
    windows = [window, *steps]
    starts = [row.start_unix_ns for row in windows]
    facts = _Facts.of(trace, events, (min(starts), max(map(_end, windows))))
    whole = _window(facts, window, step=None)
    return RankDetail(
        **{name: getattr(whole, name) for name in whole.__struct_fields__},
        steps=[_window(facts, row, step=row.step) for row in steps[:MAX_STEPS]],
    )


def _end(window: StepBreakdown) -> int:
    return window.start_unix_ns + round(window.window_us * 1000)


def _window(facts: _Facts, window: StepBreakdown, step: int | None) -> WindowDetail:
    begin, finish = window.start_unix_ns, _end(window)
    starting = (facts.start >= begin) & (facts.start < finish)
    inside = np.flatnonzero(starting | ((facts.start < begin) & (facts.end > begin)))
    start, end = np.maximum(facts.start[inside], begin), np.minimum(facts.end[inside], finish)
    kind, label = facts.kind[inside], facts.label[inside]
    device, stream = facts.device[inside], facts.stream[inside]
    on_device = np.flatnonzero(facts.on_device[inside])
    strange = np.flatnonzero(facts.beside[inside] & (label == _LABELS.index(OTHER)))
    labelled = np.flatnonzero(label != _NO_LABEL)
    copies = np.flatnonzero(starting & facts.on_device & (facts.is_copy | (facts.kind == MEMCPY)))
    compute, communication = (union(start[kind == one], end[kind == one]) for one in (COMPUTE, COMMUNICATION))
    launch = launch_part(facts.launches, facts.idle, begin, finish)
    return WindowDetail(
        step=step,
        start_unix_ns=begin,
        window_us=window.window_us,
        devices=_devices(device, kind, start, end, (begin, finish)),
        streams=stream_parts(device[on_device], stream[on_device], kind[on_device], start[on_device], end[on_device]),
        classes=class_parts(
            _LABELS, label[labelled], start[labelled], end[labelled], compute=compute, communication=communication
        ),
        unclassified=unclassified(
            facts.names,
            facts.name[inside[strange]],
            stream[strange],
            start=start[strange],
            end=end[strange],
            window_ns=finish - begin,
        ),
        recompute=_recompute(facts, inside, start, end),
        launch=launch,
        copies=copy_parts(
            facts.names,
            facts.name[copies],
            start=facts.start[copies],
            end=facts.end[copies],
            size=facts.size[copies],
            collective=facts.kind[copies] == COMMUNICATION,
            hidden=facts.hides,
        ),
        contention=_contention(facts, starting),
    )


def _devices(
    device: NDArray[np.int16],
    kind: NDArray[np.int8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    window: tuple[int, int],
) -> list[DevicePart]:
    """The partition on each device; what runs on the CPU (gloo) counts on all of them."""
    parts: list[DevicePart] = []
    for number in np.unique(device[device >= 0]) if (device >= 0).any() else [-1]:
        mine = (device == number) | (device < 0)
        sets = [union(start[mine & (kind == one)], end[mine & (kind == one)]) for one in (COMPUTE, COMMUNICATION, MEMCPY)]
        part = partition(Work(*sets), *window)
        parts.append(
            DevicePart(
                device=known(int(number)),
                window_us=part.window_us,
                compute_us=part.compute_us,
                communication_us=part.communication_us,
                overlap_us=part.overlap_us,
                exposed_communication_us=part.exposed_communication_us,
                memcpy_us=part.memcpy_us,
                exposed_memcpy_us=part.exposed_memcpy_us,
                idle_us=part.idle_us,
            )
        )
    return parts


def _recompute(facts: _Facts, inside: NDArray[np.intp], start: NDArray[np.int64], end: NDArray[np.int64]) -> Recompute | None:
    if facts.again is None:
        return None
    computes = facts.kind[inside] == COMPUTE
    operator = facts.again[inside]
    again = operator >= 0
    compute = measure(union(start[computes], end[computes]))
    repeated = measure(union(start[computes & again], end[computes & again]))
    return Recompute(
        operators=len(np.unique(operator[again])),
        events=int(again.sum()),
        busy_us=measure(union(start[again], end[again])) / 1000,
        compute_share=repeated / compute if compute else None,
    )


def _contention(facts: _Facts, starting: NDArray[np.bool_]) -> Contention | None:
    if not (facts.on_device & (facts.kind == COMMUNICATION)).any():
        return None
    chosen = np.flatnonzero(starting & facts.on_device & (facts.kind == COMPUTE))
    length = facts.end[chosen] - facts.start[chosen]
    return contention(facts.names, facts.name[chosen], facts.same[chosen], length, facts.under[chosen])
