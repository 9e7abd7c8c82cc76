"""Check of a trace's device events: events without times, far from the rest or too long, and launches without their kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.data_quality import DataQuality, Problem
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.calls import (
    EARLY_START,
    GIVES_WORK,
    RuntimeCalls,
    before_launch,
    kernel_launches,
    launch_about,
    out_of_order,
)
from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, LEFT_OUT, OPERATOR
from rankscope.analysis.trace.classify import is_work
from rankscope.analysis.trace.intervals import are_within, distinct, middles, positions_of
from rankscope.runs.records import DeviceKind

MOST_MISSING: Final = 0.02
"""Largest share of device events that may be missing from a step, or have impossible times, for its figures to count."""
MOST_CUT: Final = 0.2
"""The same for events that were cut: their new length is an estimate, which is about right."""

_NS_PER_S: Final = 1_000_000_000
_LEAST_GAP_NS: Final = _NS_PER_S
HOST_PLACE: Final = 0.01
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
_MOST_WITHOUT_KERNEL: Final = 0.5
"""Share of launches without their kernel above which a trace does not show what its device did."""
_CAPTURED_PER_KERNEL: Final = 9
"""Launches into a device graph per kernel above which a trace shows little but the capture of that graph."""
_ROUNDED_NS: Final = 20_000
"""Usual length of a kernel from which rounding to whole microseconds makes none of 0."""
_UNBOUNDED_NS: Final = 1 << 62
NOWHERE_NS: Final = -2_000_000_000 * _NS_PER_S
"""Start of a device event whose time in the file is impossible, such as NaN; with a base it still fits 64 bits."""


class HostEvents(msgspec.Struct, frozen=True):
    """Events of the host with a believable time, in arrays [events]. Times are int64 nanoseconds without a base."""

    rows: NDArray[np.intp]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    places: Sequence[tuple[int, int]]
    """Times near them, see the function ``places``."""
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


class CheckedEvents(msgspec.Struct, frozen=True):
    """Result of the check. Times have no base."""

    missing: NDArray[np.int64]
    """Launch times of the device events that are missing from the trace or left out, ascending."""
    cut: NDArray[np.int64]
    """Launch times of the device events that were cut, ascending."""
    quality: DataQuality
    launches_work: bool
    """True if the host gave any work to a device."""
    host_left_out: int = 0
    """Number of the host's events without a believable time."""


_ONE_AFTER_THE_OTHER: Final = frozenset({"cuda", "rocm", "xpu"})
"""Kinds of devices of which the events of a stream run one after the other."""
_MOST_OVERLAPPING: Final = 0.1
"""Largest share of events that last beyond the next on a queue of another device whose events run one after the other."""


def check_columns(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], base_ns: int, kind: DeviceKind, *, torn: bool
) -> CheckedEvents:
    """Check the times of a trace's events, mark those that are left out, and cut those that last too long.

    Times have no base yet. ``torn``: the end of the file is missing, so that kernels may be missing, too.
    """
    start, end, category = columns["start"], columns["end"], columns["category"]
    rows = np.flatnonzero(category <= COPY)
    latest = int(start.max(initial=0))
    host = _host_events(columns, base_ns, latest)
    at = np.flatnonzero(category[host.rows] == LAUNCHED)
    launching = host.rows[at]
    calls = RuntimeCalls(
        start=host.start[at],
        end=host.end[at],
        thread=columns["thread"][launching],
        correlation=columns["correlation"][launching],
        names=names,
        name=columns["name"][launching],
    )
    work = _are_work(columns["name"][rows], names)
    has_no_time = untimed(start[rows], end[rows], base_ns, latest) | (work & _without_length(columns, rows))
    device = _device_events(columns, rows, calls, kind, has_no_time)
    device.queue[~work] = -1
    is_distant = ~device.untimed & _far(device, calls, host)
    keep = ~device.untimed & ~is_distant
    kept_rows = _in_order(device, np.flatnonzero(keep))
    cut = np.zeros(len(rows), dtype=bool)
    ends = device.end.copy()
    ends[kept_rows], cut[kept_rows] = _without_overruns(device, calls, host, kept_rows)
    # Without correlation ids on the device's side nothing can be said of single launches.
    shows_all = not torn and (bool((device.correlation >= 0).any()) or not len(rows))
    launched, lost, captured = kernel_launches(calls, device.call, device.correlation, shows_all=shows_all)

    launch, left_out = device.launch.copy(), ~keep
    unlinked = left_out & (device.call < 0)
    if unlinked.any() and len(at):
        bounds = (int(host.start.min()) - 1, int(host.end.max()) + 1)
        launch[unlinked] = launch_about(device.correlation[unlinked], calls, bounds)
    missing = [calls.start[lost], launch[left_out & (launch >= 0)]]
    if (left_out & (launch < 0)).any():
        # It is not known where they belong, so they may be missing anywhere.
        missing.append(device.start[keep])
    gives_work = bool(calls.named(GIVES_WORK).any())
    linked = kept_rows[device.call[kept_rows] >= 0]
    early, disordered = before_launch(device.start[linked], launch[linked]), out_of_order(launch[linked], device.queue[linked])
    quality = DataQuality(
        device_events=len(rows),
        launches=int(launched.sum()),
        captured=int(captured.sum()),
        **_counts(len(rows), without_time=device.untimed.sum(), far=is_distant.sum(), overlong=cut.sum()),
        **_counts(launched.sum(), without_kernel=lost.sum()),
        **_counts(len(linked), before_launch=early, out_of_order=disordered),
    )
    kernels = int((category[rows[keep]] == KERNEL).sum())
    problem, reason = _no_activity(quality, bool(keep.any()), kernels, gives_work=gives_work and not torn)
    if problem is None and (reason := _contradiction(quality, len(linked))) is not None:
        problem = "damaged"
    category[rows[left_out]] = LEFT_OUT
    end[rows[cut]] = ends[cut]
    return CheckedEvents(
        missing=np.sort(np.concatenate(missing)),
        cut=np.sort(np.where(launch >= 0, launch, device.start)[cut]),
        quality=msgspec.structs.replace(quality, problem=problem, reason=reason),
        launches_work=gives_work,
        host_left_out=host.left_out,
    )


def _host_events(columns: Mapping[str, NDArray[Any]], base_ns: int, latest_ns: int) -> HostEvents:
    """Return the host's events, after those without a believable time were left out."""
    category = columns["category"]
    rows = np.flatnonzero((category >= OPERATOR) & (category <= LAUNCHED))
    start, end = columns["start"][rows], columns["end"][rows]
    timed = ~untimed(start, end, base_ns, latest_ns)
    host_places = places(start, end, share=HOST_PLACE) if timed.all() else places(start[timed], end[timed], share=HOST_PLACE)
    alone = np.flatnonzero(~are_within(start, host_places))
    # One event may span the minutes before all others.
    timed[alone] &= are_within(end[alone], host_places)
    left_out = rows[~timed]
    category[left_out] = LEFT_OUT
    if len(left_out):
        rows, start, end = rows[timed], start[timed], end[timed]
    return HostEvents(rows, start, end, host_places, len(left_out))


def _device_events(
    columns: Mapping[str, NDArray[Any]],
    rows: NDArray[np.intp],
    calls: RuntimeCalls,
    kind: DeviceKind,
    has_no_time: NDArray[np.bool_],
) -> DeviceEvents:
    start, end, stream, correlation = (columns[name][rows] for name in ("start", "end", "stream", "correlation"))
    # Numbers of streams are below 2**46.
    queue = (stream << 16) + columns["device"][rows] + 1
    queue[stream < 0] = -1
    if kind not in _ONE_AFTER_THE_OTHER:
        queue[_overlap(queue, start, end)] = -1
    call = positions_of(correlation, calls.correlation)
    return DeviceEvents(
        start=start,
        end=end,
        queue=queue,
        correlation=correlation,
        kernel=_kernel_numbers(columns, rows),
        untimed=has_no_time,
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


def untimed(start: NDArray[np.int64], end: NDArray[np.int64], base_ns: int, latest_ns: int) -> NDArray[np.bool_]:
    """Return which events the profiler could not time: it then writes 0 for start and end on the clock of its device.

    ``start`` and ``end`` are as in the file, in nanoseconds; ``base_ns`` is to be added. ``latest_ns``: latest start of
    any event.
    """
    instant: NDArray[np.bool_] = start == end
    if not instant.any():
        return instant
    # A trace may also count its times from 0.
    at_zero = (start == 0) & (latest_ns > _LEAST_GAP_NS)
    instant &= (start == NOWHERE_NS) | at_zero | ((start <= -base_ns) & (base_ns > 0))
    return instant


def _are_work(name: NDArray[np.int32], names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which events are work by their names, [events]."""
    work = np.zeros(len(names), dtype=bool)
    work[[number for number in distinct(name) if is_work(names[number])]] = True
    of_events: NDArray[np.bool_] = work[name]
    return of_events


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


def are_damaged(present: NDArray[np.int_], missing: NDArray[np.int_], cut: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Return for which steps so many device events are missing or cut that their figures do not count, [steps].

    ``present``: events that are there, the cut ones included.
    """
    damaged: NDArray[np.bool_] = (missing > MOST_MISSING * (missing + present)) | (cut > MOST_CUT * present)
    return damaged


def _far(device: DeviceEvents, calls: RuntimeCalls, host: HostEvents) -> NDArray[np.bool_]:
    """Return which events are far in time from their launch or, where it is not known, from everything that the host did."""
    host_places = host.places if len(host.rows) else places(device.start[~device.untimed], share=_DEVICE_PLACE)
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


def places(start: NDArray[np.int64], end: NDArray[np.int64] | None = None, *, share: float) -> list[tuple[int, int]]:
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


def _in_order(device: DeviceEvents, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of events by queue and start."""
    start, queue = device.start[rows], device.queue[rows]
    order = np.lexsort((start, queue))
    if (start[order[1:]] == start[order[:-1]]).any():
        # Rounded to whole microseconds, a short event and the one after it may start at once; the short one was first.
        order = np.lexsort((device.end[rows], start, queue))
    return rows[order]


def _without_overruns(
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


def _no_activity(quality: DataQuality, has_work: bool, kernels: int, *, gives_work: bool) -> tuple[Problem | None, str | None]:
    """Return why the trace does not show what the device did, see ``DataQuality``; nothing if it does.

    ``kernels``: number of those that count.
    """
    lost, launches, captured = quality.without_kernel, quality.launches, quality.captured
    is_capture = captured > _CAPTURED_PER_KERNEL * kernels
    if has_work and (quality.without_kernel_share or 0.0) <= _MOST_WITHOUT_KERNEL and not is_capture:
        return None, None
    if quality.device_events and not has_work:
        return "damaged", f"has no time for any of its {counted(quality.device_events, 'device event')}"
    if not gives_work:
        return None, None
    if is_capture and captured > lost:
        counts = f"{captured:,} of {captured + launches:,} kernel launches are part of it"
        return "captured_graph", f"shows the capture of a device graph, which does not run it: {counts}"
    if not launches:
        return "no_activity", "shows calls that give work to a device, but no device activity"
    return "no_activity", f"shows no device activity: {lost:,} of {launches:,} kernel launches have no kernel"


def _counts(of: int, **counts: int) -> dict[str, Any]:
    """Return the fields of ``DataQuality`` for counts: each, and its share ``of`` a number."""
    shares = {f"{name}_share": int(count) / int(of) if of else None for name, count in counts.items()}
    return {name: int(count) for name, count in counts.items()} | shares


def _contradiction(quality: DataQuality, linked: int) -> str | None:
    """Return why a trace's clocks cannot be believed, as the end of a sentence about the trace; ``None`` if they can.

    ``linked``: number of device events whose launch is known.
    """
    early, disordered = quality.before_launch, quality.out_of_order
    for count, sentence in (
        (early, "has device events that begin before their launch: its clocks of host and device contradict each other"),
        (disordered, "has device events in another order than their launches: a clock was set back while it was recorded"),
    ):
        if count > 1 and count > MOST_MISSING * linked:  # a single event is damaged by itself
            return f"{sentence} ({count:,} of {counted(linked, 'event')})"
    return None
