"""Times of a trace's events that cannot be right: none, far from all others, or longer than until the next of the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, LEFT_OUT, OPERATOR
from rankscope.analysis.trace.classify import is_work
from rankscope.analysis.trace.intervals import are_within, middles, positions_of
from rankscope.analysis.trace.numbering import are_named
from rankscope.analysis.trace.runtime_calls import EARLY_START, RuntimeCalls
from rankscope.runs.records import DeviceKind

_NS_PER_S: Final = 1_000_000_000
_LEAST_GAP_NS: Final = _NS_PER_S
_HOST_PLACE: Final = 0.01
"""Size of a place in time that is one of the trace, however far it is from the others, as a share of the host's largest."""
_DEVICE_PLACE: Final = 0.25
"""The same for events of the device in a trace without any of the host."""
_APART_NS: Final = 60 * _NS_PER_S
_LONGEST_QUEUE_NS: Final = 600 * _NS_PER_S
"""Longest time from a launch to its event: a device queues about a thousand launches."""
_OVERLAP_NS: Final = 2_000
"""Overlap of two events of one stream that is no damage: rounding to whole microseconds, and the resolution of clocks."""
_LEAST_OVERLAP: Final = 0.01
"""The same as a share of the first event: cutting it would change nothing."""
_LAST_NS: Final = _NS_PER_S // 10
"""Time for which the last event of a stream may go on beyond all others, however short the trace is."""
_ROUNDED_NS: Final = 20_000
"""Usual length of a kernel from which rounding to whole microseconds makes none of 0."""
_UNBOUNDED_NS: Final = 1 << 62
NOWHERE_NS: Final = -2_000_000_000 * _NS_PER_S
"""Start of a device event whose time in the file is impossible, such as NaN; with a base it still fits 64 bits."""
_ONE_AFTER_THE_OTHER: Final = frozenset({"cuda", "rocm", "xpu"})
"""Kinds of devices of which the events of a stream run one after the other."""
_MOST_OVERLAPPING: Final = 0.1
"""Largest share of events that last beyond the next on a queue of another device whose events run one after the other."""


class HostEvents(msgspec.Struct, frozen=True):
    """Events of the host with a believable time, in arrays [events]. Times are int64 nanoseconds without a base."""

    rows: NDArray[np.intp]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    places: Sequence[tuple[int, int]]
    """Times near them, see the function ``_places``."""
    left_out: int
    """Number of the host's other events."""


class DeviceEvents(msgspec.Struct, frozen=True):
    """Device events of a trace in arrays [events]. Times are int64 nanoseconds without a base; missing integers are -1."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    queue: NDArray[np.int64]
    """Device and stream as one number; -1 where events may overlap or are no work, or the stream is not known."""
    correlation: NDArray[np.int64]
    kernel: NDArray[np.int64]
    """Name and launch grid as one number: events with the same number usually take about as long."""
    untimed: NDArray[np.bool_]
    """True where the file says that there is no time, or an impossible one."""
    call: NDArray[np.intp]
    """Position of the call that launched it, or -1."""
    launch: NDArray[np.int64]
    """Start of that call, or -1."""


def host_events(columns: Mapping[str, NDArray[Any]], base_ns: int) -> HostEvents:
    """Return the host's events, and mark those without a believable time as left out."""
    category = columns["category"]
    rows = np.flatnonzero((category >= OPERATOR) & (category <= LAUNCHED))
    start, end = columns["start"][rows], columns["end"][rows]
    timed = ~_untimed(columns, rows, base_ns)
    host_places = _places(start[timed], end[timed], share=_HOST_PLACE)
    alone = np.flatnonzero(~are_within(start, host_places))
    # One event may span the minutes before all others.
    timed[alone] &= are_within(end[alone], host_places)
    left_out = rows[~timed]
    category[left_out] = LEFT_OUT
    if len(left_out):
        rows, start, end = rows[timed], start[timed], end[timed]
    return HostEvents(rows, start, end, host_places, len(left_out))


def device_events_of(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], calls: RuntimeCalls, base_ns: int, kind: DeviceKind
) -> DeviceEvents:
    """Return the device events with the calls that launched them."""
    rows = np.flatnonzero(columns["category"] <= COPY)
    start, end, stream, correlation = (columns[name][rows] for name in ("start", "end", "stream", "correlation"))
    work = are_named(names, columns["name"][rows], is_work)
    # Numbers of streams are below 2**46.
    queue = (stream << 16) + columns["device"][rows] + 1
    queue[stream < 0] = -1
    if kind not in _ONE_AFTER_THE_OTHER:
        queue[_overlap(queue, start, end)] = -1
    queue[~work] = -1
    call = positions_of(correlation, calls.correlation)
    return DeviceEvents(
        start=start,
        end=end,
        queue=queue,
        correlation=correlation,
        kernel=_kernel_numbers(columns, rows),
        untimed=_untimed(columns, rows, base_ns) | (work & _without_length(columns, rows)),
        call=call,
        launch=np.where(call >= 0, calls.start[call] if len(calls.start) else -1, -1),
    )


def _overlap(queue: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which events are of a queue on which so many last beyond the next that overlaps are no damage, [events]."""
    order = np.lexsort((end, start, queue))
    queues, first, number = np.unique(queue[order], return_index=True, return_inverse=True)
    beyond = np.append(end[order[:-1]] - start[order[1:]] > _OVERLAP_NS, False)
    beyond[first[1:] - 1] = False  # the last of each queue
    count = np.bincount(number, minlength=len(queues))
    overlaps = np.bincount(number, weights=beyond, minlength=len(queues)) > _MOST_OVERLAPPING * count
    of_queue: NDArray[np.bool_] = overlaps[np.searchsorted(queues, queue)]
    return of_queue


def _untimed(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.intp], base_ns: int) -> NDArray[np.bool_]:
    """Return which events the profiler could not time: it then writes 0 for start and end on the clock of its device, [rows].

    Times are as in the file, in nanoseconds; ``base_ns`` is to be added.
    """
    start = columns["start"][rows]
    instant: NDArray[np.bool_] = start == columns["end"][rows]
    if not instant.any():
        return instant
    # A trace may also count its times from 0.
    at_zero = (start == 0) & (columns["start"].max() > _LEAST_GAP_NS)
    instant &= (start == NOWHERE_NS) | at_zero | ((start <= -base_ns) & (base_ns > 0))
    return instant


def _without_length(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which kernels have a length of 0 because the profiler could not time them, [events]; filling nothing takes none.

    Rounded to whole microseconds, a short kernel seems to take none.
    """
    length = columns["end"][rows] - columns["start"][rows]
    none: NDArray[np.bool_] = (length == 0) & (columns["category"][rows] == KERNEL)
    if none.any() and (length % 1000 == 0).all():
        usual = _usual(_kernel_numbers(columns, rows), length, length == 0)
        none &= (usual >= _ROUNDED_NS) & (usual < _UNBOUNDED_NS)
    return none


def _kernel_numbers(columns: Mapping[str, NDArray[Any]], rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return name and launch grid of events as one number."""
    numbers: NDArray[np.int64] = (columns["name"][rows].astype(np.int64) << 32) + columns["grid"][rows] + 1
    return numbers


def are_far(device: DeviceEvents, calls: RuntimeCalls, host: HostEvents) -> NDArray[np.bool_]:
    """Return which events are far in time from their launch or, where it is not known, from everything that the host did."""
    host_places = host.places if len(host.rows) else _places(device.start[~device.untimed], share=_DEVICE_PLACE)
    away, is_linked, wait = ~are_within(device.start, host_places), device.call >= 0, device.start - device.launch
    is_distant: NDArray[np.bool_] = np.where(is_linked, (wait < -_LEAST_GAP_NS) | (wait > _LONGEST_QUEUE_NS), away)
    late = np.flatnonzero(is_linked & away & ~is_distant & ~device.untimed)
    if len(late):
        busy = _busy_since(device, np.flatnonzero(~is_distant & ~device.untimed))
        is_distant[late] = calls.end[device.call[late]] < busy[late] - _LEAST_GAP_NS
    return is_distant


def _busy_since(device: DeviceEvents, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return since when the device was busy when each event began, but for breaks of less than a second, [events].

    A launched event that is queued for longer waits for others.
    """
    order = rows[np.argsort(device.start[rows], kind="stable")]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = device.start[order[1:]] - np.maximum.accumulate(device.end[order])[:-1] > _LEAST_GAP_NS
    since = device.start.copy()
    since[order] = device.start[order[begins]][np.cumsum(begins) - 1]
    return since


def _places(start: NDArray[np.int64], end: NDArray[np.int64] | None = None, *, share: float) -> list[tuple[int, int]]:
    """Return the places in time where some events are, as first and last time near them.

    A place has at least this ``share`` of the events that the largest has, and more than one where any has.
    """
    if not len(start):
        return []
    end = start if end is None else np.minimum(end, start + _APART_NS)
    edges = [0, len(start)]
    if int(start.max()) - int(start.min()) > _APART_NS:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        edges[1:1] = (np.flatnonzero(np.diff(start) > _APART_NS) + 1).tolist()
    intervals = []
    largest = int(np.diff(edges).max())
    for first, past in pairwise(edges):
        if past - first >= max(share * largest, min(largest, 2)):
            begin, last = int(start[first:past].min()), int(end[first:past].max())
            slack = max(_LEAST_GAP_NS, last - begin)
            intervals.append((begin - slack, last + slack))
    return intervals


def in_order(device: DeviceEvents, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of events by queue and start."""
    start, queue = device.start[rows], device.queue[rows]
    order = np.lexsort((start, queue))
    if (start[order[1:]] == start[order[:-1]]).any():
        # Rounded to whole microseconds, a short event and the one after it may start at once; the short one was first.
        order = np.lexsort((device.end[rows], start, queue))
    return rows[order]


def without_overruns(
    device: DeviceEvents, calls: RuntimeCalls, host: HostEvents, kept_rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the ends of the events in ``kept_rows``, cut at the start of the next of their stream, and which are cut.

    The events are given by queue and start. They end then after the median length of the same kernel, but before the next of
    their stream begins. The nodes of a device graph may run side by side. A kernel launched to start early does so before its
    predecessor ends.
    """
    end = device.end[kept_rows].copy()
    cut = np.zeros(len(kept_rows), dtype=bool)
    if not len(kept_rows):
        return end, cut
    start, queue, correlation = device.start[kept_rows], device.queue[kept_rows], device.correlation[kept_rows]
    is_other_queue = queue[1:] != queue[:-1]
    is_same_launch = ~is_other_queue & (correlation[1:] >= 0) & (correlation[1:] == correlation[:-1])
    # The nodes of a graph have one id. The next event of their stream is the first after all of them.
    past = np.arange(1, len(kept_rows) + 1)
    if is_same_launch.any():
        firsts = np.concatenate((np.flatnonzero(~is_same_launch) + 1, [len(kept_rows)]))
        past = firsts[np.searchsorted(firsts, past)]
    is_last = (past == len(kept_rows)) | (queue != queue[np.minimum(past, len(kept_rows) - 1)])
    this, following = np.flatnonzero(~is_last), past[~is_last]
    over = (end[this] - start[following] > _OVERLAP_NS) & (queue[this] >= 0)
    if over.any():
        over &= end[this] - start[following] > _LEAST_OVERLAP * (end[this] - start[this])
        starts_early = np.append(calls.named(EARLY_START), False)  # False: no call
        over &= ~(starts_early[device.call[kept_rows[following]]] & (end[this] <= end[following] + _OVERLAP_NS))
        cut[this[over]] = True
        end[this[over]] = np.minimum(
            start[following[over]], start[this[over]] + _usual(device.kernel[kept_rows], end - start, cut)[this[over]]
        )
    # The last of a stream has no next one. It is too long if it goes on for as long again as the whole rest of the trace.
    last = np.flatnonzero(is_last)
    begin, latest = int(start.min()), int(start.max())
    near_ends = host.end[(host.start >= begin - _APART_NS) & (host.start <= latest + _APART_NS)]
    latest = max(latest, int(np.minimum(near_ends, latest + _APART_NS).max())) if len(near_ends) else latest
    length = end - start
    others = length[~is_last]
    longest = max(latest - begin, int(others.max(initial=0)))
    if latest > begin:
        distant = last[(end[last] > latest + max(longest, _LAST_NS)) & (end[last] - start[last] > 2 * longest)]
        cut[distant] = True
        if len(distant):
            end[distant] = start[distant] + np.minimum(longest, _usual(device.kernel[kept_rows], end - start, cut)[distant])
    return end, cut


def _usual(kernel: NDArray[np.int64], length: NDArray[np.int64], without: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, per event, the median length of its kernel ``without`` some events; beyond all bounds where there is none."""
    rows = np.flatnonzero(~without)
    if not len(rows):
        return np.full(len(length), _UNBOUNDED_NS)
    first, low, high = middles(length[rows], kernel[rows])
    like, median = kernel[rows[first]], (low + high) // 2
    at = np.minimum(np.searchsorted(like, kernel), len(like) - 1)
    return np.where(like[at] == kernel, median[at], _UNBOUNDED_NS)
