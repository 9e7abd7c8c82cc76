"""Graph of a profiled step: the own time of each rank, and the collectives at which ranks meet.

A rank works until it arrives at a collective, and continues while the collective runs. If it computed nothing up to the
collective's end, it waits from its last known activity until that end. All other time between arrivals is its own time. A
collective begins when its last rank has arrived and the previous collective of the group has ended. Its transfer time is the
least time that any rank spent in it from then on.

The last rank to arrive waits for no rank, so the graph does not know where it would have waited. If it is made faster, it may
run ahead of the others; the step ends with the last rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import Match, arrival_ns
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.communication import common_extent
from rankscope.analysis.statistics import lower_median
from rankscope.analysis.trace.intervals import Spans, measure, union
from rankscope.analysis.whatif.graph import Graph, Times, build_graph
from rankscope.runs.records import CollectiveRecord, StepBreakdown

OWN = "own time"
"""Kind of the nodes that are no collective, in ``kinds``."""


@dataclass(frozen=True, slots=True)
class WindowGraph:
    """Graph of one profiled step. Times are nanoseconds; arrays have one entry per node."""

    step: int
    graph: Graph
    real: Times
    ideal: Times
    """Ideal time, never longer than ``real``. Own time between two arrivals: that of the median rank among those with the same
    collectives. Transfers: the median of their operation."""
    ranks: NDArray[np.int64]
    kinds: list[str]
    """``own time``, or the operation of a collective."""
    measured: float


@dataclass(frozen=True, slots=True)
class _Stop:
    """Time at which a rank arrives at a collective (``waits`` false), or begins to wait for its end."""

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
        """Add a node that waits for those in ``after``, and return it."""
        node = len(self.real)
        self.real.append(took)
        self.ranks.append(rank)
        self.kinds.append(kind)
        self.interval.append(interval)
        self.edges += [(before, node) for before in after]
        return node


def build_window_graph(
    step: int,
    matches: Sequence[Match],
    windows: Mapping[int, StepBreakdown],
    clocks: Clocks,
    *,
    following: Mapping[int, StepBreakdown] | None = None,
) -> WindowGraph | None:
    """Build the graph of one step from its matched collectives and the windows of all its ranks; ``None`` if it takes no time.

    ``following``: windows of the next step. Its graph begins with its first rank, so what another rank does from then on until
    it begins its own next step is in that graph. Raises ``CycleError`` for collectives in an impossible order.
    """
    begin, _ = common_extent(windows, clocks)
    ends = {rank: row.start_unix_ns + round(row.window_us * 1000) for rank, row in windows.items()}
    builder = _Builder(matches)
    stops: dict[int, list[tuple[int, CollectiveRecord]]] = {rank: [] for rank in windows}
    for number, match in enumerate(matches):
        for rank, record in zip(match.ranks, match.records, strict=True):
            if rank in stops:
                stops[rank].append((number, record))
    if following:
        next_begin, _ = common_extent(following, clocks)
        for rank, records in stops.items():
            last = max((record.end_unix_ns for _, record in records), default=0)
            ends[rank] = min(ends[rank], max(last, clocks.seen_at(rank, next_begin)))
    finish = max(clocks.correct(rank, end) for rank, end in ends.items())
    if finish <= begin:
        return None
    passed: dict[int, list[float]] = {}
    for rank, records in stops.items():
        start = clocks.seen_at(rank, begin)
        passed[rank] = _walk(builder, rank, records, (start, ends[rank]))
    ideal = _ideal(builder, passed, {rank: _signature(matches, stops[rank]) for rank in stops})
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
    """Return the transfer time of each collective: its least time on any rank, at least 0.

    The time of a rank counts from its arrival, or from the end of the previous collective in the group if that is later.
    """
    free: dict[tuple[str, int], int] = {}
    transfers = [0.0] * len(matches)
    for number in sorted(range(len(matches)), key=lambda index: min(record.end_unix_ns for record in matches[index].records)):
        match = matches[number]
        took = []
        for rank, record in zip(match.ranks, match.records, strict=True):
            key = (match.group, rank)
            took.append(record.end_unix_ns - max(arrival_ns(record), free.get(key, 0)))
            free[key] = record.end_unix_ns
        transfers[number] = float(max(0, min(took)))
    return transfers


def _stops(records: Sequence[tuple[int, CollectiveRecord]], end: int) -> tuple[list[_Stop], Spans]:
    """Return the stops of a rank (arrivals and waits) in the order of time, and the merged spans in which it waited."""
    arrivals = np.sort(np.array([arrival_ns(record) for _, record in records], dtype=np.int64))
    stops: list[_Stop] = []
    starts: list[int] = []
    ends: list[int] = []
    for number, record in records:
        arrived = arrival_ns(record)
        stops.append(_Stop(arrived, number, waits=False))
        # The last known activity of this rank before the collective ended.
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
    """Add one rank's nodes in the order of time; returns its own time in each interval between two arrivals."""
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
        node_ = builder.add(rank, match.op, builder.transfer[stop.match], [node, *before])
        builder.members.setdefault(stop.match, []).append(node_)
        at[stop.match] = last_of_group[match.group] = node_
        intervals.append(0.0)
    builder.add(rank, OWN, float(own[-1]), after, len(intervals) - 1)
    intervals[-1] += float(own[-1])
    return intervals


def _before(spans: Spans, time: int) -> int:
    """Return the length of the spans before a time."""
    return int(measure(np.minimum(spans, time))) if len(spans) else 0


def _signature(matches: Sequence[Match], records: Sequence[tuple[int, CollectiveRecord]]) -> tuple[tuple[str, int | None], ...]:
    """Return operation and size of a rank's collectives in its order: ranks with equal signatures run the same program."""
    ordered = sorted(records, key=lambda entry: arrival_ns(entry[1]))
    return tuple((matches[number].op, record.bytes) for number, record in ordered)


def _ideal(
    builder: _Builder, passed: Mapping[int, list[float]], signatures: Mapping[int, tuple[tuple[str, int | None], ...]]
) -> Times:
    """Return ideal times [nodes]: own time shortened to the median rank's, transfers to the median of their operation."""
    real = np.array(builder.real)
    shortened: dict[int, NDArray[np.float64]] = {}
    alike: dict[tuple[tuple[str, int | None], ...], list[int]] = {}
    for rank, signature in signatures.items():
        alike.setdefault(signature, []).append(rank)
    for ranks in alike.values():
        values = np.array([passed[rank] for rank in ranks])
        usual = lower_median(values)
        for rank, own in zip(ranks, values, strict=True):
            shortened[rank] = np.divide(np.minimum(own, usual), own, out=np.ones_like(own), where=own > 0)
    ideal = real.copy()
    interval = np.array(builder.interval)
    owners = np.array(builder.ranks)
    for rank, factors in shortened.items():
        of_rank = (owners == rank) & (interval >= 0)
        ideal[of_rank] *= factors[interval[of_rank]]
    kinds = np.array(builder.kinds)
    for kind in np.unique(kinds[interval < 0]):
        of_rank = (kinds == kind) & (interval < 0)
        ideal[of_rank] = np.minimum(real[of_rank], np.median(real[of_rank]))
    return ideal
