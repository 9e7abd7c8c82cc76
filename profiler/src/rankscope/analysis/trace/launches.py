"""Launches of device work: queue delay from the launching call to the device, and reasons of idle time."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.detail import LaunchPart, QueueDelay
from rankscope.analysis.trace.categories import KERNEL
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.intervals import Spans, clip, intersect, join, measure, subtract, union
from rankscope.analysis.trace.work import KINDS, WorkEvents

_NO_GRAPH: Final = -2
_GRAPH_LAUNCH: Final = "GraphLaunch"


class Idle(msgspec.Struct, frozen=True):
    """Idle time of a whole trace by reason: merged sets that do not overlap each other; see ``idle_of``."""

    queued: Spans
    launching: Spans
    unknown: Spans
    starved: Spans


class Launches(msgspec.Struct, frozen=True):
    """Launch of each event on a device, in arrays [events]. Times are nanoseconds."""

    kind: NDArray[np.int8]
    start: NDArray[np.int64]
    call: NDArray[np.intp]
    """Row of the launching call in the trace, -1 where it is missing."""
    delay: NDArray[np.int64]
    """Time from the call's start to the event's start; meaningless where ``leads`` is false."""
    leads: NDArray[np.bool_]
    """True where the call is known and the event is the first of the call's events to start."""
    graph: NDArray[np.int64]
    """Correlation id of the launch of the event's device graph, -1 where it has none; ``_NO_GRAPH`` for events outside graphs."""


def idle_of(trace: Trace, events: WorkEvents, gaps: Spans) -> Idle:
    """Split the idle time in ``gaps`` by what the device waited for; the first reason that applies counts.

    - *queued*: an event had been launched and had not started.
    - *launching*: the launching call of an event that had not started was running.
    - *unknown*: the event that ends the gap has no launching call in the trace.
    - *starved*: everything else.
    """
    device = events.is_on_device(trace)
    calls, start = events.launch_row[device], events.start[device]
    linked = calls >= 0
    begun, called = start[linked], calls[linked]
    returned = np.minimum(trace.end[called], begun)
    waiting = union(returned, begun)
    calling = union(trace.start[called], returned)
    rest = subtract(gaps, join(waiting, calling))
    strangers = gaps[np.isin(gaps[:, 1], start[~linked]) & ~np.isin(gaps[:, 1], begun)]
    return Idle(
        queued=intersect(gaps, waiting),
        launching=subtract(intersect(gaps, calling), waiting),
        unknown=intersect(rest, strangers),
        starved=subtract(rest, strangers),
    )


def launches_of(trace: Trace, events: WorkEvents) -> Launches:
    """Return the launch of every event on the device, in the order of ``events``."""
    device = events.is_on_device(trace)
    rows, calls, start = events.rows[device], events.launch_row[device], events.start[device]
    correlation = trace.correlation[rows]
    leads = np.zeros(len(rows), dtype=bool)
    # Events are ordered by start, so the first index of a call is its first event.
    leads[np.unique(calls, return_index=True)[1]] = True
    return Launches(
        kind=events.kind[device],
        start=start,
        call=calls,
        delay=start - np.where(calls >= 0, trace.start[calls], start),
        leads=leads & (calls >= 0),
        graph=np.where(_in_graph(trace, rows, calls, correlation), correlation, _NO_GRAPH),
    )


def _in_graph(trace: Trace, rows: NDArray[np.intp], calls: NDArray[np.intp], correlation: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which events belong to a device graph, [events].

    These are events marked as graph nodes and events whose launching call launches graphs. Where the call is not in the trace,
    they are kernels that share a correlation id: only a graph launch starts several kernels.
    """
    launches_graph = np.array([_GRAPH_LAUNCH in name for name in trace.names], dtype=bool)
    by_call = (calls >= 0) & launches_graph[trace.name[calls]]
    lonely = (calls < 0) & (correlation >= 0) & (trace.category[rows] == KERNEL)
    ids, counts = np.unique(correlation[lonely], return_counts=True)
    in_graph: NDArray[np.bool_] = trace.graphed[rows] | by_call | (lonely & np.isin(correlation, ids[counts > 1]))
    return in_graph


def launch_part(launches: Launches, idle: Idle, start: int, end: int) -> LaunchPart | None:
    """Summarise the launches of events that start in ``[start, end)``; ``None`` where the trace has no known launching call."""
    if not (launches.call >= 0).any():
        return None
    mine = (launches.start >= start) & (launches.start < end)
    leads = mine & launches.leads
    calls = launches.call[mine]
    graph = launches.graph[mine]
    delays = [_queue_delay(kind, launches.delay[leads & (launches.kind == kind)]) for kind in range(len(KINDS))]
    return LaunchPart(
        events=int(mine.sum()),
        linked=int((calls >= 0).sum()),
        calls=len(np.unique(calls[calls >= 0])),
        idle_queued_us=measure(clip(idle.queued, start, end)) / 1000,
        idle_launching_us=measure(clip(idle.launching, start, end)) / 1000,
        idle_starved_us=measure(clip(idle.starved, start, end)) / 1000,
        idle_unknown_us=measure(clip(idle.unknown, start, end)) / 1000,
        queue_delay=[delay for delay in delays if delay is not None],
        started_early=int((launches.delay[leads] < 0).sum()),
        graph_launches=len(np.unique(graph[graph != _NO_GRAPH])),
        graph_events=int((graph != _NO_GRAPH).sum()),
    )


def _queue_delay(kind: int, delay: NDArray[np.int64]) -> QueueDelay | None:
    if not len(delay):
        return None
    median, late, longest = np.percentile(np.maximum(delay, 0), (50, 90, 100)) / 1000
    return QueueDelay(kind=KINDS[kind], events=len(delay), median_us=float(median), p90_us=float(late), longest_us=float(longest))
