"""A profiled step as a graph: what each rank did by itself, and the collectives at which it met others.

A rank works until it arrives at a collective, and goes on beside it; it waits for it where nothing was computed up to the
collective's end, from the last thing that it did before. What lies between, waiting apart, is its own time. A collective begins
when the last rank has arrived and the one before it in the same group has ended, and takes the least time that it took anybody
since.

The rank that comes last waits for nobody, so that its graph does not know where it would have waited. It may run ahead of the
others when it is made faster; the step ends with the last rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.clock import Clocks
from rankscope.analysis.extent import common_extent
from rankscope.analysis.intervals import Spans, measure, union
from rankscope.analysis.matching import Match, arrival_ns
from rankscope.analysis.whatif.graph import Graph, Times, build_graph
from rankscope.analysis.whatif.step_graph import middle
from rankscope.runs.records import CollectiveRecord, StepBreakdown

OWN = "own time"
"""What is no collective, in ``kinds``."""


@dataclass(frozen=True, slots=True)
class WindowGraph:
    """One profiled step. Nanoseconds; one entry per node."""

    step: int
    graph: Graph
    real: Times
    ideal: Times
    """Own time between two arrivals: that of the rank in the middle of those that do the same; transfers: the median of their
    operation and size; neither longer than it was."""
    ranks: NDArray[np.int64]
    kinds: list[str]
    """``own time``, or the collective's operation."""
    measured: float


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where a rank arrives at a collective (``waits`` false), or must have its result to go on."""

    time: int
    match: int
    waits: bool


class _Builder:
    """Nodes and edges of one step so far."""

    def __init__(self, matches: Sequence[Match]) -> None:
        self.matches = matches
        self.transfer = _transfers(matches)
        self.real: list[float] = []
        self.ranks: list[int] = []
        self.kinds: list[str] = []
        self.interval: list[int] = []
        self.edges: list[tuple[int, int]] = []
        self.members: dict[int, list[int]] = {}

    def add(self, rank: int, kind: str, took: float, after: Sequence[int], interval: int = -1) -> int:
        """A node that waits for those in ``after``."""
        node = len(self.real)
        self.real.append(took)
        self.ranks.append(rank)
        self.kinds.append(kind)
        self.interval.append(interval)
        self.edges += [(before, node) for before in after]
        return node


def build_window_graph(
    step: int, matches: Sequence[Match], windows: Mapping[int, StepBreakdown], clocks: Clocks
) -> WindowGraph | None:
    """Graph of one step from its matched collectives and the windows of all its ranks; ``None`` where it takes no time.

    Raises ``CycleError`` for collectives that no order of events allows.
    """
    begin, finish = common_extent(windows, clocks)
    ends = {rank: row.start_unix_ns + round(row.window_us * 1000) for rank, row in windows.items()}
    if finish <= begin:
        return None
    builder = _Builder(matches)
    held: dict[int, list[tuple[int, CollectiveRecord]]] = {rank: [] for rank in windows}
    for number, match in enumerate(matches):
        for rank, record in zip(match.ranks, match.records, strict=True):
            if rank in held:
                held[rank].append((number, record))
    passed: dict[int, list[float]] = {}
    for rank, records in held.items():
        start = clocks.seen_at(rank, begin)
        passed[rank] = _walk(builder, rank, records, (start, ends[rank]))
    ideal = _ideal(builder, passed, {rank: _signature(matches, held[rank]) for rank in held})
    groups = [nodes for nodes in builder.members.values() if len(nodes) > 1]
    graph = build_graph(len(builder.real), builder.edges, groups, [False] * len(groups))
    return WindowGraph(
        step=step,
        graph=graph,
        real=np.array(builder.real),
        ideal=ideal,
        ranks=np.array(builder.ranks),
        kinds=builder.kinds,
        measured=float(finish - begin),
    )


def _transfers(matches: Sequence[Match]) -> list[float]:
    """What each collective took since everybody was there, and the one before it in the group was over."""
    free: dict[tuple[str, int], int] = {}
    found = [0.0] * len(matches)
    for number in sorted(range(len(matches)), key=lambda one: min(record.end_unix_ns for record in matches[one].records)):
        match = matches[number]
        took = []
        for rank, record in zip(match.ranks, match.records, strict=True):
            key = (match.group, rank)
            took.append(record.end_unix_ns - max(arrival_ns(record), free.get(key, 0)))
            free[key] = record.end_unix_ns
        found[number] = float(max(0, min(took)))
    return found


def _stops(records: Sequence[tuple[int, CollectiveRecord]], end: int) -> tuple[list[_Stop], Spans]:
    """Where a rank arrives and waits, in the order of time, and the merged times in which it waited."""
    arrivals = np.sort(np.array([arrival_ns(record) for _, record in records], dtype=np.int64))
    stops: list[_Stop] = []
    starts: list[int] = []
    ends: list[int] = []
    for number, record in records:
        arrived = arrival_ns(record)
        stops.append(_Stop(arrived, number, waits=False))
        # The last thing this rank is known to have done before the collective ended.
        at = int(np.searchsorted(arrivals, record.end_unix_ns, side="left")) - 1
        idle_since = max(arrived, int(arrivals[at]) if at >= 0 else arrived)
        for first, last in record.compute_spans_us:
            if record.enqueue_unix_ns + first * 1000 < record.end_unix_ns:
                idle_since = max(idle_since, record.enqueue_unix_ns + round(last * 1000))
        if idle_since < min(record.end_unix_ns, end):
            stops.append(_Stop(idle_since, number, waits=True))
            starts.append(idle_since)
            ends.append(min(record.end_unix_ns, end))
    stops.sort(key=lambda stop: (stop.time, stop.waits))
    return stops, union(np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


def _walk(builder: _Builder, rank: int, records: Sequence[tuple[int, CollectiveRecord]], window: tuple[int, int]) -> list[float]:
    """Add one rank's nodes in the order of time; its own time in each interval between two arrivals."""
    stops, waits = _stops(records, window[1])
    edges = np.array([window[0], *(min(max(stop.time, window[0]), window[1]) for stop in stops), window[1]], dtype=np.int64)
    waited = np.array([_before(waits, int(time)) for time in edges])
    own = np.diff(edges - waited).astype(np.float64).clip(min=0.0)
    intervals = [0.0]
    after: list[int] = []
    at: dict[int, int] = {}
    last_of_group: dict[str, int] = {}
    for stop, took in zip(stops, own[:-1].tolist(), strict=True):
        node = builder.add(rank, OWN, took, after, len(intervals) - 1)
        intervals[-1] += took
        after = [node]
        if stop.waits:
            after.append(at[stop.match])
            continue
        match = builder.matches[stop.match]
        before = [last_of_group[match.group]] if match.group in last_of_group else []
        there = builder.add(rank, match.op, builder.transfer[stop.match], [node, *before])
        builder.members.setdefault(stop.match, []).append(there)
        at[stop.match] = last_of_group[match.group] = there
        intervals.append(0.0)
    builder.add(rank, OWN, float(own[-1]), after, len(intervals) - 1)
    intervals[-1] += float(own[-1])
    return intervals


def _before(spans: Spans, time: int) -> int:
    """How much of the spans lies before a time."""
    return int(measure(np.minimum(spans, time))) if len(spans) else 0


def _signature(matches: Sequence[Match], records: Sequence[tuple[int, CollectiveRecord]]) -> tuple[tuple[str, int | None], ...]:
    """The collectives of a rank in its order: ranks that have the same do the same."""
    ordered = sorted(records, key=lambda one: arrival_ns(one[1]))
    return tuple((matches[number].op, record.bytes) for number, record in ordered)


def _ideal(
    builder: _Builder, passed: Mapping[int, list[float]], signatures: Mapping[int, tuple[tuple[str, int | None], ...]]
) -> Times:
    """[nodes]: own time shortened to that of the rank in the middle, transfers to the median of their operation."""
    real = np.array(builder.real)
    shortened: dict[int, NDArray[np.float64]] = {}
    alike: dict[tuple[tuple[str, int | None], ...], list[int]] = {}
    for rank, signature in signatures.items():
        alike.setdefault(signature, []).append(rank)
    for ranks in alike.values():
        values = np.array([passed[rank] for rank in ranks])
        usual = middle(values)
        for rank, own in zip(ranks, values, strict=True):
            shortened[rank] = np.divide(np.minimum(own, usual), own, out=np.ones_like(own), where=own > 0)
    ideal = real.copy()
    interval = np.array(builder.interval)
    owners = np.array(builder.ranks)
    for rank, factors in shortened.items():
        mine = (owners == rank) & (interval >= 0)
        ideal[mine] *= factors[interval[mine]]
    kinds = np.array(builder.kinds)
    for kind in np.unique(kinds[interval < 0]):
        mine = (kinds == kind) & (interval < 0)
        ideal[mine] = np.minimum(real[mine], np.median(real[mine]))
    return ideal
