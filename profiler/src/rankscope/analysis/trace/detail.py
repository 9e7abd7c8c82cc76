"""Details of a trace's time beyond the partition, from its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.detail import (
    ClassPart,
    Contention,
    CopyPart,
    DevicePart,
    NamedKernel,
    RankDetail,
    Recompute,
    StreamPart,
    WindowDetail,
)
from rankscope.analysis.trace.categories import COPY, NOTE
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import Spans, by_key, covered, join, measure, subtract, union
from rankscope.analysis.trace.kernels import (
    CLASS_NAMES,
    COMMUNICATION_CLASS,
    OPTIMIZER,
    OTHER,
    class_parts,
    contention,
    kernel_class,
    same_work,
    unclassified,
)
from rankscope.analysis.trace.launches import Idle, Launches, idle_of, launch_part, launches_of
from rankscope.analysis.trace.streams import beside_the_main_stream, copy_parts, known, recomputing_rows, stream_parts
from rankscope.analysis.trace.work import COMMUNICATION, COMPUTE, MEMCPY, Work, WorkEvents, enclosing, partition, within
from rankscope.runs.records import StepBreakdown

MAX_STEPS: Final = 64
"""Number of steps whose details are kept, from the first one on."""

_LABELS: Final = [*CLASS_NAMES, OTHER, COMMUNICATION_CLASS]
_NO_LABEL: Final = -1
_OPTIMIZER_STEP: Final = "Optimizer.step#"


class _Facts(msgspec.Struct, frozen=True):
    """Columns with one entry per event that is work, in order of start; sets and rows of the whole trace. In nanoseconds."""

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
    """True for events that are not on the main compute stream of the device."""
    again: NDArray[np.intp] | None
    """Number of the forward operator inside backward that launched it, -1 where none; ``None`` where it cannot be known."""
    under: NDArray[np.int64]
    """Part of it that lies under communication of its own device."""
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
    """Return the class index of every event, ``_NO_LABEL`` for copies. Compute of an optimizer's step has class ``OPTIMIZER``."""
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
    # Where work runs on a device, the launching calls of that work must be known.
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
    """Return the bytes that each event moves, as recorded for the event, or else for the call that launched it alone."""
    size = trace.bytes[rows].copy()
    _, where, counts = np.unique(caller, return_inverse=True, return_counts=True)
    silent = (size < 0) & (caller >= 0) & (counts[where] == 1)
    size[silent] = trace.bytes[caller[silent]]
    return size


def detail_of(trace: Trace, events: WorkEvents, window: StepBreakdown, steps: Sequence[StepBreakdown]) -> RankDetail:
    """Return the details of the whole ``window`` of a file, and of its annotated ``steps``."""
    facts = _Facts.of(trace, events, _bounds([window, *steps]))
    whole = _window(facts, window, step=None)
    return RankDetail(
        **{name: getattr(whole, name) for name in whole.__struct_fields__},
        steps=[_window(facts, row, step=row.step) for row in steps[:MAX_STEPS]],
    )


def with_parts(trace: Trace, events: WorkEvents, steps: Sequence[StepBreakdown]) -> list[StepBreakdown]:
    """Return the breakdowns with the details that a run keeps: classes, recompute, and the reasons of idle time."""
    if not steps:
        return []
    facts = _Facts.of(trace, events, _bounds(steps))
    return [_with_parts(facts, row) for row in steps]


def _with_parts(facts: _Facts, step: StepBreakdown) -> StepBreakdown:
    inside = _Inside.of(facts, step.start_unix_ns, _end(step))
    recompute = _recompute(facts, inside)
    launch = launch_part(facts.launches, facts.idle, inside.begin, inside.finish)
    return msgspec.structs.replace(
        step,
        class_us={part.name: part.busy_us for part in _classes(inside)},
        recompute_us=None if recompute is None else recompute.busy_us,
        idle_starved_us=None if launch is None else launch.idle_starved_us,
        idle_launching_us=None if launch is None else launch.idle_launching_us,
        idle_queued_us=None if launch is None else launch.idle_queued_us,
        idle_unknown_us=None if launch is None else launch.idle_unknown_us,
    )


def _bounds(windows: Sequence[StepBreakdown]) -> tuple[int, int]:
    return min(row.start_unix_ns for row in windows), max(map(_end, windows))


def _end(window: StepBreakdown) -> int:
    return window.start_unix_ns + round(window.window_us * 1000)


class _Inside(msgspec.Struct, frozen=True):
    """Events that run in a window, cut to it."""

    begin: int
    finish: int
    rows: NDArray[np.intp]
    """Indices into the columns of ``_Facts``."""
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int8]
    label: NDArray[np.int64]
    device: NDArray[np.int16]
    compute: Spans
    communication: Spans

    @classmethod
    def of(cls, facts: _Facts, begin: int, finish: int) -> Self:
        rows = np.flatnonzero((facts.start < finish) & ((facts.start >= begin) | (facts.end > begin)))
        start, end = np.maximum(facts.start[rows], begin), np.minimum(facts.end[rows], finish)
        kind = facts.kind[rows]
        return cls(
            begin=begin,
            finish=finish,
            rows=rows,
            start=start,
            end=end,
            kind=kind,
            label=facts.label[rows],
            device=facts.device[rows],
            compute=union(start[kind == COMPUTE], end[kind == COMPUTE]),
            communication=union(start[kind == COMMUNICATION], end[kind == COMMUNICATION]),
        )


def _window(facts: _Facts, window: StepBreakdown, step: int | None) -> WindowDetail:
    inside = _Inside.of(facts, window.start_unix_ns, _end(window))
    starting = (facts.start >= inside.begin) & (facts.start < inside.finish)
    return WindowDetail(
        step=step,
        start_unix_ns=window.start_unix_ns,
        window_us=window.window_us,
        devices=_devices(inside),
        streams=_streams(facts, inside),
        classes=_classes(inside),
        unclassified=_unclassified(facts, inside),
        recompute=_recompute(facts, inside),
        launch=launch_part(facts.launches, facts.idle, inside.begin, inside.finish),
        copies=_copies(facts, starting),
        contention=_contention(facts, starting),
    )


def _devices(inside: _Inside) -> list[DevicePart]:
    """Return the partition of the window on each device; work on the CPU (gloo) counts on all of them."""
    parts: list[DevicePart] = []
    for number in np.unique(inside.device[inside.device >= 0]) if (inside.device >= 0).any() else [-1]:
        mine = (inside.device == number) | (inside.device < 0)
        chosen = [mine & (inside.kind == one) for one in (COMPUTE, COMMUNICATION, MEMCPY)]
        part = partition(Work(*(union(inside.start[one], inside.end[one]) for one in chosen)), inside.begin, inside.finish)
        said = msgspec.structs.asdict(part)
        del said["start_ns"]
        parts.append(DevicePart(device=known(int(number)), **said))
    return parts


def _streams(facts: _Facts, inside: _Inside) -> list[StreamPart]:
    chosen = np.flatnonzero(facts.on_device[inside.rows])
    stream = facts.stream[inside.rows[chosen]]
    return stream_parts(inside.device[chosen], stream, inside.kind[chosen], inside.start[chosen], inside.end[chosen])


def _classes(inside: _Inside) -> list[ClassPart]:
    chosen = np.flatnonzero(inside.label != _NO_LABEL)
    return class_parts(
        _LABELS,
        inside.label[chosen],
        inside.start[chosen],
        inside.end[chosen],
        compute=inside.compute,
        communication=inside.communication,
    )


def _unclassified(facts: _Facts, inside: _Inside) -> list[NamedKernel]:
    chosen = np.flatnonzero(facts.beside[inside.rows] & (inside.label == _LABELS.index(OTHER)))
    rows = inside.rows[chosen]
    return unclassified(
        facts.names,
        facts.name[rows],
        facts.stream[rows],
        start=inside.start[chosen],
        end=inside.end[chosen],
        window_ns=inside.finish - inside.begin,
    )


def _recompute(facts: _Facts, inside: _Inside) -> Recompute | None:
    if facts.again is None:
        return None
    computes = inside.kind == COMPUTE
    operator = facts.again[inside.rows]
    again = operator >= 0
    compute = measure(inside.compute)
    repeated = measure(union(inside.start[computes & again], inside.end[computes & again]))
    return Recompute(
        operators=len(np.unique(operator[again])),
        events=int(again.sum()),
        busy_us=measure(union(inside.start[again], inside.end[again])) / 1000,
        compute_share=repeated / compute if compute else None,
    )


def _copies(facts: _Facts, starting: NDArray[np.bool_]) -> list[CopyPart]:
    chosen = np.flatnonzero(starting & facts.on_device & (facts.is_copy | (facts.kind == MEMCPY)))
    return copy_parts(
        facts.names,
        facts.name[chosen],
        start=facts.start[chosen],
        end=facts.end[chosen],
        size=facts.size[chosen],
        collective=facts.kind[chosen] == COMMUNICATION,
        hidden=facts.hides,
    )


def _contention(facts: _Facts, starting: NDArray[np.bool_]) -> Contention | None:
    if not (facts.on_device & (facts.kind == COMMUNICATION)).any():
        return None
    chosen = np.flatnonzero(starting & facts.on_device & (facts.kind == COMPUTE))
    length = facts.end[chosen] - facts.start[chosen]
    return contention(facts.names, facts.name[chosen], facts.same[chosen], length, facts.under[chosen])
