"""Columns of the events that are work, with all that the details of a window need; computed once for a whole trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.categories import COPY, KERNEL, NOTE
from rankscope.analysis.trace.columns import BACKWARD, RECORDED, Trace
from rankscope.analysis.trace.intervals import Spans, by_key, covered, intersect, join, subtract, union
from rankscope.analysis.trace.kernels import COMMUNICATION_CLASS, LABELS, NO_LABEL, OPTIMIZER, kernel_class
from rankscope.analysis.trace.work import COMMUNICATION, COMPUTE, WorkEvents, beside_the_main_stream, enclosing, outermost, within
from rankscope.runs.records import StepBreakdown

NO_GRAPH: Final = -2
_GRAPH_LAUNCH: Final = "GraphLaunch"
_OPTIMIZER_STEP: Final = "Optimizer.step#"


class DetailColumns(msgspec.Struct, frozen=True):
    """Events that are work, in arrays [events] in order of start, and facts of the whole trace. Times are nanoseconds."""

    kind: NDArray[np.int8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    """Index into ``names``."""
    work: NDArray[np.int64]
    """Equal for kernels that do the same work."""
    bytes: NDArray[np.int64]
    """Bytes that the event moves; -1 where unknown."""
    device: NDArray[np.int16]
    stream: NDArray[np.int64]
    on_device: NDArray[np.bool_]
    is_copy: NDArray[np.bool_]
    label: NDArray[np.int64]
    """Class: an index into ``LABELS``, or ``NO_LABEL`` for copies."""
    beside: NDArray[np.bool_]
    """True for events that are not on the main compute stream of the device."""
    recomputing: NDArray[np.intp]
    """Number of the recomputed forward operator that launched it, -1 where none."""
    under: NDArray[np.int64]
    """Part of it that lies under communication of its own device."""
    call: NDArray[np.intp]
    """Row of the launching call in the trace, -1 where it is missing."""
    delay: NDArray[np.int64]
    """Time from the call's start to the event's start; meaningless where ``leads`` is false."""
    leads: NDArray[np.bool_]
    """True where the call is known and the event is the first of the call's events on a device to start."""
    graph: NDArray[np.int64]
    """Correlation id of the launch of the event's device graph, -1 where it has none; ``NO_GRAPH`` for events outside graphs."""
    names: list[str]
    hides: Spans
    """Compute and communication of all devices."""
    idle: dict[str, Spans] | None
    """Idle time by reason, see ``_idle``; ``None`` where no launching call is in the trace."""
    knows_recompute: bool
    """True if the trace tells which events are recomputed."""
    communicates: bool
    """True if there is communication on a device."""

    def take(self, rows: NDArray[Any]) -> Self:
        """Return the events of a mask or of positions."""
        return msgspec.structs.replace(self, **{column: getattr(self, column)[rows] for column in _COLUMNS})

    def cut(self, begin: int, end: int) -> Self:
        """Return the events that run in a window, cut to it."""
        inside = self.take(np.flatnonzero((self.start < end) & ((self.start >= begin) | (self.end > begin))))
        return msgspec.structs.replace(inside, start=np.maximum(inside.start, begin), end=np.minimum(inside.end, end))

    def spans(self, rows: NDArray[Any]) -> Spans:
        """Return the time of the events of a mask or of positions as a merged set."""
        return union(self.start[rows], self.end[rows])


_COLUMNS: Final = DetailColumns.__struct_fields__[: DetailColumns.__struct_fields__.index("names")]


def detail_columns(trace: Trace, events: WorkEvents, windows: Sequence[StepBreakdown]) -> DetailColumns:
    """Return the columns of a trace's work, with the idle time from the begin of the first of ``windows`` to the last end."""
    rows, calls = events.rows, events.launch_row
    on_device = events.is_on_device(trace)
    device, stream = trace.device[rows], trace.stream[rows]
    work = events.work
    bounds = np.array([[min(row.start_unix_ns for row in windows), max(map(end_of, windows))]], dtype=np.int64)
    gaps = subtract(bounds, work.busy())
    recomputing = _recomputing(trace, events, on_device)
    return DetailColumns(
        kind=events.kind,
        start=events.start,
        end=events.end,
        name=trace.name[rows],
        work=_same_work(trace.name[rows], trace.grid[rows], device, stream),
        bytes=_bytes(trace, events),
        device=device,
        stream=stream,
        on_device=on_device,
        is_copy=trace.category[rows] == COPY,
        label=_labels(trace, events),
        beside=on_device & beside_the_main_stream(device, stream, events.kind, events.end - events.start),
        recomputing=np.full(len(rows), -1, dtype=np.intp) if recomputing is None else recomputing,
        under=_under_communication(device, events),
        call=calls,
        delay=events.start - events.launch,
        leads=_leads(calls, on_device),
        graph=np.where(_in_graph(trace, events, on_device), trace.correlation[rows], NO_GRAPH),
        names=trace.names,
        hides=join(work.compute, work.communication),
        idle=_idle(trace, events, gaps, on_device),
        knows_recompute=recomputing is not None,
        communicates=bool((on_device & (events.kind == COMMUNICATION)).any()),
    )


def end_of(window: StepBreakdown) -> int:
    """Return the end of a window in nanoseconds."""
    return window.start_unix_ns + round(window.window_us * 1000)


def _idle(trace: Trace, events: WorkEvents, gaps: Spans, on_device: NDArray[np.bool_]) -> dict[str, Spans] | None:
    """Split the idle time in ``gaps`` by what the device waited for; the first reason that applies counts.

    - *queued*: an event had been launched and had not started.
    - *launching*: the launching call of an event that had not started was running.
    - *unknown*: the event that ends the gap has no launching call in the trace.
    - *starved*: everything else.
    """
    calls, start = events.launch_row[on_device], events.start[on_device]
    linked = calls >= 0
    if not linked.any():
        return None
    begun, called = start[linked], calls[linked]
    returned = np.minimum(trace.end[called], begun)
    waiting = union(returned, begun)
    calling = union(trace.start[called], returned)
    other_gaps = subtract(gaps, join(waiting, calling))
    unknown = gaps[np.isin(gaps[:, 1], start[~linked]) & ~np.isin(gaps[:, 1], begun)]
    return {
        "idle_queued_us": intersect(gaps, waiting),
        "idle_launching_us": subtract(intersect(gaps, calling), waiting),
        "idle_unknown_us": intersect(other_gaps, unknown),
        "idle_starved_us": subtract(other_gaps, unknown),
    }


def _leads(calls: NDArray[np.intp], on_device: NDArray[np.bool_]) -> NDArray[np.bool_]:
    leads = np.zeros(len(calls), dtype=bool)
    rows = np.flatnonzero(on_device & (calls >= 0))
    # Events are ordered by start, so the first index of a call is its first event.
    leads[rows[np.unique(calls[rows], return_index=True)[1]]] = True
    return leads


def _in_graph(trace: Trace, events: WorkEvents, on_device: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which events belong to a device graph, [events].

    These are events marked as graph nodes and events whose launching call launches graphs. Where the call is not in the trace,
    they are kernels that share a correlation id: only a graph launch starts several kernels.
    """
    rows, calls = events.rows, events.launch_row
    correlation = trace.correlation[rows]
    by_call = (calls >= 0) & trace.named(lambda name: _GRAPH_LAUNCH in name)[calls]
    lonely = (calls < 0) & (correlation >= 0) & (trace.category[rows] == KERNEL)
    ids, counts = np.unique(correlation[lonely], return_counts=True)
    in_graph: NDArray[np.bool_] = trace.graphed[rows] | by_call | (lonely & np.isin(correlation, ids[counts > 1]))
    return in_graph & on_device


def _labels(trace: Trace, events: WorkEvents) -> NDArray[np.int64]:
    """Return the class of every event. Compute of an optimizer's step has class ``OPTIMIZER``."""
    name, caller = trace.name[events.rows], events.launch_row
    optimizing = caller >= 0
    optimizing[optimizing] = within(trace, caller[optimizing], trace.rows(NOTE, _OPTIMIZER_STEP))
    computes = events.kind == COMPUTE
    by_name = np.full(len(trace.names), NO_LABEL, dtype=np.int64)
    for number in np.unique(name[computes]):
        by_name[number] = LABELS.index(kernel_class(trace.names[number]))
    label = np.full(len(name), NO_LABEL, dtype=np.int64)
    label[computes] = by_name[name[computes]]
    label[computes & optimizing] = LABELS.index(OPTIMIZER)
    label[events.kind == COMMUNICATION] = LABELS.index(COMMUNICATION_CLASS)
    return label


def _recomputing(trace: Trace, events: WorkEvents, on_device: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    """Return the number of the recomputed forward operator that launched each event, or -1; ``None`` where it cannot be known.

    Autograd numbers the operators that it records while gradients are on. Backward itself runs with gradients off. So an operator
    inside a backward operator that has a number, but no forward thread, is a recomputed forward operator. This holds for every
    checkpointing implementation. A backward that is itself differentiated (``create_graph=True``) looks the same. Recomputation
    inside a compiled backward is not visible.
    """
    linked = events.launch_row >= 0
    # Where work runs on a device, the launching calls of that work must be known.
    if not trace.autograd.any() or not (linked & (on_device | (not trace.has_device_work))).any():
        return None
    recorded = np.flatnonzero(trace.autograd == RECORDED)
    is_recomputed = np.zeros(len(trace.start), dtype=bool)
    is_recomputed[recorded[within(trace, recorded, np.flatnonzero(trace.autograd == BACKWARD))]] = True
    recomputing = np.full(len(events.rows), -1, dtype=np.intp)
    recomputing[linked] = enclosing(trace, events.launch_row[linked], outermost(trace, is_recomputed))
    return recomputing


def _under_communication(device: NDArray[np.int16], events: WorkEvents) -> NDArray[np.int64]:
    under = np.zeros(len(device), dtype=np.int64)
    for rows in by_key(device):
        talks = rows[events.kind[rows] == COMMUNICATION]
        under[rows] = covered(events.start[rows], events.end[rows], union(events.start[talks], events.end[talks]))
    return under


def _bytes(trace: Trace, events: WorkEvents) -> NDArray[np.int64]:
    """Return the bytes that each event moves, as recorded for the event, or else for the call that launched it alone."""
    size, caller = trace.bytes[events.rows].copy(), events.launch_row
    _, where, counts = np.unique(caller, return_inverse=True, return_counts=True)
    silent = (size < 0) & (caller >= 0) & (counts[where] == 1)
    size[silent] = trace.bytes[caller[silent]]
    return size


def _same_work(
    name: NDArray[np.int32], grid: NDArray[np.int32], device: NDArray[np.int16], stream: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a number per event (in order of start) that is equal for the same name and grid between the same neighbours.

    Neighbours are the two events before and the two after it on the stream. They stand for the shape, which traces seldom
    record. A matrix product written to use the whole device has one name and one grid for all sizes. The place in the model
    distinguishes these sizes.
    """
    own = _mixed(name.astype(np.int64), grid.astype(np.int64))
    place = own.copy()
    for rows in by_key(device, stream):
        for distance in (1, 2):
            place[rows[distance:]] = _mixed(place[rows[distance:]], own[rows[:-distance]])
            place[rows[:-distance]] = _mixed(place[rows[:-distance]], own[rows[distance:]])
    return place


def _mixed(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    # Multiplication by odd numbers overflows on purpose: this scatters the bits.
    return (left * 0x2545F4914F6CDD1D) ^ (right * 0x1B873593CC9E2D51 + 0x165667B19E3779F9)
