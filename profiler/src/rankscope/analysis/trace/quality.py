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
    HostEvents,
    before_launch,
    calls_of,
    contradiction,
    in_capture,
    is_work_launch,
    kernel_launches,
    launch_about,
    named,
    out_of_order,
    part_of_another,
)
from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, LEFT_OUT, OPERATOR
from rankscope.analysis.trace.intervals import distinct, middles
from rankscope.runs.records import DeviceKind

MOST_MISSING: Final = 0.02
"""Largest share of device events that may be missing from a step for its figures to count."""
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
_CAPTURED_PER_EVENT: Final = 9
"""Launches into a device graph per device event above which a trace shows little but the capture of that graph."""
_UNBOUNDED_NS: Final = 1 << 62
NOWHERE_NS: Final = -2_000_000_000 * _NS_PER_S
"""Start of a device event whose time in the file is impossible, such as NaN; with a base it still fits 64 bits."""


class DeviceEvents(msgspec.Struct, frozen=True):
    """Device events of a trace in arrays [events]. Times are int64 nanoseconds; missing integers are -1."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    queue: NDArray[np.int64]
    """Device and stream as one number; -1 where events may overlap, or the stream is not known."""
    correlation: NDArray[np.int64]
    kernel: NDArray[np.int64]
    """Name and launch grid as one number: events with the same number usually take about as long."""
    untimed: NDArray[np.bool_]
    """True where the file says that there is no time, or an impossible one."""


class Checked(msgspec.Struct, frozen=True):
    """Result of the check."""

    keep: NDArray[np.bool_]
    """Device events with believable times, [events]."""
    end: NDArray[np.int64]
    """Their ends; those of events that last too long are cut, [events]."""
    missing: NDArray[np.int64]
    """Launch times of the device events that are missing from the trace or left out, ascending."""
    cut: NDArray[np.int64]
    """Launch times of the device events that were cut, ascending."""
    cut_ends: dict[int, int]
    """End of each event that was cut, by its correlation id."""
    quality: DataQuality
    launches_work: bool
    """True if the host gave any work to a device."""
    host_left_out: int = 0
    """Number of the host's events without a believable time."""


def check(device: DeviceEvents, host: HostEvents, *, torn: bool) -> Checked:
    """Check the device events of a trace. ``torn``: the end of the file is missing, so that kernels may be missing, too."""
    call_of = calls_of(device.correlation, host)
    launch = np.where(call_of >= 0, host.start[call_of] if len(host.start) else -1, -1)
    far = ~device.untimed & _far(device, host, call_of, launch)
    keep = ~device.untimed & ~far
    end = device.end.copy()
    cut = np.zeros(len(end), dtype=bool)
    kept = _in_order(device, np.flatnonzero(keep))
    end[kept], cut[kept] = _without_overruns(device, host, call_of, kept)

    called = distinct(host.name)
    launched = kernel_launches(host, called)
    # Without correlation ids on the device's side nothing can be said of single launches.
    known = bool((device.correlation >= 0).any()) or not len(device.start)
    led = np.zeros(len(host.start) + 1, dtype=bool)
    led[call_of] = True
    lost = launched & ~led[host.calls] & known & (not torn)
    if lost.any():  # two calls may have one id
        lost &= ~np.isin(host.correlation, device.correlation)
    captured = lost & in_capture(host, called) if lost.any() else lost
    launched &= ~captured
    lost &= launched
    if lost.any():
        launched &= ~part_of_another(host, launched, lost)
        lost &= launched
    left_out = ~keep
    unlinked = left_out & (call_of < 0)
    if unlinked.any():
        launch[unlinked] = launch_about(device.correlation[unlinked], host)
    missing = [host.start[host.calls[lost]], launch[left_out & (launch >= 0)]]
    if (left_out & (launch < 0)).any():
        # It is not known where they belong, so they may be missing anywhere.
        missing.append(device.start[keep])
    linked = kept[call_of[kept] >= 0]
    launched_at = launch[linked]
    early, disordered = before_launch(device.start[linked], launched_at), out_of_order(launched_at, device.queue[linked])
    gives_work = any(is_work_launch(host.names[at]) for at in called)
    quality = DataQuality(
        device_events=len(device.start),
        without_time=int(device.untimed.sum()),
        without_time_share=_share(device.untimed.sum(), len(device.start)),
        far=int(far.sum()),
        far_share=_share(far.sum(), len(device.start)),
        overlong=int(cut.sum()),
        overlong_share=_share(cut.sum(), len(device.start)),
        launches=int(launched.sum()),
        without_kernel=int(lost.sum()),
        without_kernel_share=_share(lost.sum(), launched.sum()),
        captured=int(captured.sum()),
        before_launch=early,
        before_launch_share=_share(early, len(linked)),
        out_of_order=disordered,
        out_of_order_share=_share(disordered, len(linked)),
    )
    problem, reason = _no_activity(quality, bool(keep.any()), gives_work=gives_work and not torn)
    if problem is None and (reason := contradiction(quality)) is not None:
        problem = "damaged"
    return Checked(
        keep=keep,
        end=end,
        missing=np.sort(np.concatenate(missing)),
        cut=np.sort(np.where(launch >= 0, launch, device.start)[cut]),
        cut_ends={
            number: at for number, at in zip(device.correlation[cut].tolist(), end[cut].tolist(), strict=True) if number >= 0
        },
        quality=msgspec.structs.replace(quality, problem=problem, reason=reason),
        launches_work=gives_work,
    )


def untimed(
    start: NDArray[np.int64], end: NDArray[np.int64], base_ns: int, latest_ns: int, kernel: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Return which events the profiler could not time: it then writes 0 for start and end on the clock of its device.

    ``start`` and ``end`` are as in the file, in nanoseconds; ``base_ns`` is to be added. ``latest_ns``: latest start of
    any event. ``kernel``: which events are kernels, among those of a device. A kernel's length of 0 alone means the same where
    times are finer than microseconds, as no kernel takes no time; filling nothing takes none.
    """
    length = end - start
    instant: NDArray[np.bool_] = length == 0
    if not instant.any():
        return instant
    no_length = kernel if kernel is not None and (length % 1000 != 0).any() else False
    # A trace may also count its times from 0.
    at_zero = (start == 0) & (latest_ns > _LEAST_GAP_NS)
    instant &= (start == NOWHERE_NS) | at_zero | ((start <= -base_ns) & (base_ns > 0)) | no_length
    return instant


def are_damaged(present: NDArray[np.int_], missing: NDArray[np.int_], cut: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Return for which steps so many device events are missing or cut that their figures do not count, [steps].

    ``present``: events that are there, the cut ones included.
    """
    damaged: NDArray[np.bool_] = (missing > MOST_MISSING * (missing + present)) | (cut > MOST_CUT * present)
    return damaged


def _far(device: DeviceEvents, host: HostEvents, call_of: NDArray[np.intp], launch: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which events are far in time from their launch or, where it is not known, from everything that the host did."""
    near = host.places if len(host.start) else places(device.start[~device.untimed], share=_DEVICE_PLACE)
    away, is_linked, wait = ~is_near(device.start, near), call_of >= 0, device.start - launch
    far: NDArray[np.bool_] = np.where(is_linked, (wait < -_LEAST_GAP_NS) | (wait > _LONGEST_QUEUE_NS), away)
    late = np.flatnonzero(is_linked & away & ~far & ~device.untimed)
    if len(late):
        busy = _busy_since(device, np.flatnonzero(~far & ~device.untimed))
        far[late] = host.end[call_of[late]] < busy[late] - _LEAST_GAP_NS
    return far


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
    found = []
    largest = int(np.diff(edges).max())
    for first, past in pairwise(edges):
        if past - first >= max(share * largest, min(largest, 2)):
            begin, last = int(start[first:past].min()), int(end[first:past].max())
            slack = max(_LEAST_GAP_NS, last - begin)
            found.append((begin - slack, last + slack))
    return found


def is_near(time: NDArray[np.int64], places: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which times are near one of the ``places``."""
    near = np.zeros(len(time), dtype=bool)
    for first, last in places:
        near |= (time >= first) & (time <= last)
    return near


def _in_order(device: DeviceEvents, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of events by queue and start."""
    start, queue = device.start[rows], device.queue[rows]
    order = np.lexsort((start, queue))
    if (start[order[1:]] == start[order[:-1]]).any():
        # Rounded to whole microseconds, a short event and the one after it may start at once; the short one was first.
        order = np.lexsort((device.end[rows], start, queue))
    return rows[order]


def _without_overruns(
    device: DeviceEvents, host: HostEvents, call_of: NDArray[np.intp], kept: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the ends of the ``kept`` events, cut where they last beyond the start of the next of their stream, and which are.

    The events are given by queue and start. They end then after the median length of the same kernel, but before the next of
    their stream begins. The nodes of a device graph may run side by side. A kernel launched to start early does so before its
    predecessor ends.
    """
    end = device.end[kept].copy()
    cut = np.zeros(len(kept), dtype=bool)
    if not len(kept):
        return end, cut
    start, queue, correlation = device.start[kept], device.queue[kept], device.correlation[kept]
    is_other_queue = queue[1:] != queue[:-1]
    together = ~is_other_queue & (correlation[1:] >= 0) & (correlation[1:] == correlation[:-1])
    # The nodes of a graph have one id. The next event of their stream is the first after all of them.
    past = np.arange(1, len(kept) + 1)
    if together.any():
        firsts = np.concatenate((np.flatnonzero(~together) + 1, [len(kept)]))
        past = firsts[np.searchsorted(firsts, past)]
    is_last = (past == len(kept)) | (queue != queue[np.minimum(past, len(kept) - 1)])
    this, following = np.flatnonzero(~is_last), past[~is_last]
    over = (end[this] - start[following] > _OVERLAP_NS) & (queue[this] >= 0)
    if over.any():
        over &= end[this] - start[following] > _LEAST_OVERLAP * (end[this] - start[this])
        starts_early = np.zeros(len(host.start) + 1, dtype=bool)
        starts_early[host.calls] = named(host, distinct(host.name), lambda name: EARLY_START.search(name) is not None)
        over &= ~(starts_early[call_of[kept[following]]] & (end[this] <= end[following] + _OVERLAP_NS))
        cut[this[over]] = True
        end[this[over]] = np.minimum(
            start[following[over]], start[this[over]] + _usual(device.kernel[kept], end - start, cut)[this[over]]
        )
    # The last of a stream has no next one. It is too long if it goes on for as long again as the whole rest of the trace.
    last = np.flatnonzero(is_last)
    begin, latest = int(start.min()), int(start.max())
    near = host.end[(host.start >= begin - _APART_NS) & (host.start <= latest + _APART_NS)]
    latest = max(latest, int(np.minimum(near, latest + _APART_NS).max())) if len(near) else latest
    length = end - start
    others = length[~is_last]
    longest = max(latest - begin, int(others.max(initial=0)))
    if latest > begin:
        far = last[(end[last] > latest + max(longest, _LAST_NS)) & (end[last] - start[last] > 2 * longest)]
        cut[far] = True
        if len(far):
            end[far] = start[far] + np.minimum(longest, _usual(device.kernel[kept], end - start, cut)[far])
    return end, cut


def _usual(kernel: NDArray[np.int64], length: NDArray[np.int64], cut: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, per event, the median length of those of its kernel that are not cut; beyond all bounds where there is none."""
    rows = np.flatnonzero(~cut)
    if not len(rows):
        return np.full(len(length), _UNBOUNDED_NS)
    first, low, high = middles(length[rows], kernel[rows])
    like, median = kernel[rows[first]], (low + high) // 2
    at = np.minimum(np.searchsorted(like, kernel), len(like) - 1)
    return np.where(like[at] == kernel, median[at], _UNBOUNDED_NS)


def _no_activity(quality: DataQuality, has_work: bool, *, gives_work: bool) -> tuple[Problem | None, str | None]:
    """Return why the trace does not show what the device did, see ``DataQuality``; nothing if it does."""
    lost, launches, captured = quality.without_kernel, quality.launches, quality.captured
    is_capture = captured > _CAPTURED_PER_EVENT * quality.device_events
    if has_work and (quality.without_kernel_share or 0.0) <= _MOST_WITHOUT_KERNEL and not is_capture:
        return None, None
    if quality.device_events and not has_work:
        return "damaged", f"has no time for any of its {counted(quality.device_events, 'device event')}"
    if not gives_work:
        return None, None
    if is_capture and captured > lost:
        said = f"{captured:,} of {captured + launches:,} kernel launches are part of it"
        return "captured_graph", f"shows the capture of a device graph, which does not run it: {said}"
    if not launches:
        return "no_activity", "shows calls that give work to a device, but no device activity"
    return "no_activity", f"shows no device activity: {lost:,} of {launches:,} kernel launches have no kernel"


def _share(count: np.integer | int, of: np.integer | int) -> float | None:
    return int(count) / int(of) if of else None


_ONE_AFTER_THE_OTHER: Final = frozenset({"cuda", "rocm", "xpu"})
"""Kinds of devices of which the events of a stream run one after the other."""


def check_columns(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], base_ns: int, kind: DeviceKind, *, torn: bool
) -> Checked:
    """Check the times of a trace's events, mark those that are left out, and cut those that last too long.

    Times have no base yet.
    """
    start, end, category = columns["start"], columns["end"], columns["category"]
    device = np.flatnonzero(category <= COPY)
    host = np.flatnonzero((category >= OPERATOR) & (category <= LAUNCHED))
    begin, done, latest = start[host], end[host], int(start.max(initial=0))
    timed = ~untimed(begin, done, base_ns, latest)
    near = places(begin, done, share=HOST_PLACE) if timed.all() else places(begin[timed], done[timed], share=HOST_PLACE)
    alone = np.flatnonzero(~is_near(begin, near))
    # One event may span the minutes before all others.
    timed[alone] &= is_near(done[alone], near)
    left_out = host[~timed]
    category[left_out] = LEFT_OUT
    if len(left_out):
        host, begin, done = host[timed], begin[timed], done[timed]
    calls = np.flatnonzero(category[host] == LAUNCHED)
    starts, ends, stream = start[device], end[device], columns["stream"][device]
    # Numbers of streams are below 2**46. The queues of other devices are not known to run one event after the other.
    queue = (stream << 16) + columns["device"][device] + 1
    queue[(stream < 0) | (kind not in _ONE_AFTER_THE_OTHER)] = -1
    checked = check(
        DeviceEvents(
            start=starts,
            end=ends,
            queue=queue,
            correlation=columns["correlation"][device],
            kernel=(columns["name"][device].astype(np.int64) << 32) + columns["grid"][device] + 1,
            untimed=untimed(starts, ends, base_ns, latest, category[device] == KERNEL),
        ),
        HostEvents(
            start=begin,
            end=done,
            places=near,
            thread=columns["thread"][host],
            calls=calls,
            correlation=columns["correlation"][host[calls]],
            names=names,
            name=columns["name"][host[calls]],
        ),
        torn=torn,
    )
    category[device[~checked.keep]] = LEFT_OUT
    if len(checked.cut):
        end[device] = checked.end
    return msgspec.structs.replace(checked, host_left_out=len(left_out))
