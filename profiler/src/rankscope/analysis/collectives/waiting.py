"""Directed waits, in operations that not all ranks leave together: sends and receives, and operations with a root.

The ends of an all-reduce coincide on all ranks, but those of directed operations do not. So their arrivals are compared on
corrected clocks. The later side is the origin. A side that left before the other arrived did not wait for it, because its
message fitted into a buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from rankscope.analysis.collectives.clock import TOLERANCE_NS, Clocks
from rankscope.analysis.collectives.matching import Match, Matching, arrival_ns
from rankscope.runs.records import CollectiveRecord


class Wait(msgspec.Struct, frozen=True):
    """Wait of one rank for another in one instance. Times are nanoseconds on the waiter's own clock."""

    match: Match
    waiter: int
    origin: int
    record: CollectiveRecord
    """Record of the waiter."""
    start: int
    end: int
    since: int
    """Time from which on the waiter waited for the origin alone; before that, it also waited for others."""


class Waits(msgspec.Struct, frozen=True):
    """All directed waits, and the instances that could not be judged."""

    waits: list[Wait] = msgspec.field(default_factory=list)
    transfers_ns: list[tuple[Match, int | None]] = msgspec.field(default_factory=list)
    """Judged instances, each with the duration of its transfer after the waiting; ``None`` where that is unknown."""
    excluded: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of matched instances that could not be judged, by reason."""


NOBODY_WAITED: Final = Waits()


def waits_of(matching: Matching, clocks: Clocks, machines: Mapping[int, str]) -> Waits:
    """Return the waits in the directed matches of ``matching``."""
    return directed_waits(matching.directed, clocks, clock_islands(matching.matches, machines))


def clock_islands(matches: Sequence[Match], machines: Mapping[int, str]) -> dict[int, int]:
    """Return the island number of each rank; clocks can be compared within an island.

    The ranks of an island are on one machine, or linked by collectives that end on all of them at once.
    """
    parent: dict[int | str, int | str] = {}

    def root(one: int | str) -> int | str:
        while parent.setdefault(one, one) != one:
            parent[one] = one = parent[parent[one]]
        return one

    for rank, machine in machines.items():
        parent[root(rank)] = root(machine)
    for ranks in dict.fromkeys(tuple(match.ranks) for match in matches):
        for rank in ranks[1:]:
            parent[root(rank)] = root(ranks[0])
    numbers: dict[int | str, int] = {}
    return {one: numbers.setdefault(root(one), len(numbers)) for one in list(parent) if isinstance(one, int)}


def directed_waits(directed: Sequence[Match], clocks: Clocks, islands: Mapping[int, int]) -> Waits:
    """Return the waits in ``directed``, without waits up to the clocks' residual and between ranks of different islands."""
    residual = TOLERANCE_NS if clocks.residual_ns is None else round(clocks.residual_ns)
    waits: list[Wait] = []
    transfers: list[tuple[Match, int | None]] = []
    excluded: Counter[str] = Counter()
    for match in directed:
        if len({islands.get(rank, -1 - rank) for rank in match.ranks}) > 1:
            excluded["no_common_clock"] += 1
            continue
        arrivals = dict(zip(match.ranks, clocks.corrected(match.ranks, match.arrivals_ns), strict=True))
        waits += _waits(match, arrivals, clocks, residual)
        transfers.append((match, _transfer(match, arrivals, clocks, residual)))
    return Waits(waits, transfers, dict(excluded))


def _depends(match: Match) -> Iterator[tuple[int, list[int]]]:
    """Yield each rank that may wait, and the ranks that it may wait for."""
    for rank in match.ranks:
        others = [other for other in match.ranks if other != rank]
        match match.rule:
            case "from_root":
                if rank != match.root and match.root in others:
                    yield rank, [match.root]
            case "to_root":
                if rank == match.root:
                    yield rank, others
            case "pair" | "everybody":
                yield rank, others


def _waits(match: Match, arrivals: Mapping[int, int], clocks: Clocks, residual: int) -> Iterator[Wait]:
    records = dict(zip(match.ranks, match.records, strict=True))
    for waiter, dependencies in _depends(match):
        origin = max(dependencies, key=lambda rank: (arrivals[rank], -rank))
        record, mine, last = records[waiter], arrivals[waiter], arrivals[origin]
        gone = clocks.correct(waiter, record.end_unix_ns)
        if last - mine <= residual or gone < last:
            continue
        before = max([mine, *(arrivals[rank] for rank in dependencies if rank != origin)])
        here = arrival_ns(record)
        yield Wait(match, waiter, origin, record, here, here + last - mine, here + before - mine)


def _transfer(match: Match, arrivals: Mapping[int, int], clocks: Clocks, residual: int) -> int | None:
    """Return the time from the last arrival to the last end.

    ``None`` where a receiver came after the root, because the root may have sent most of the data by then. Also ``None`` where
    the time does not exceed the clocks' residual.
    """
    ends = {rank: clocks.correct(rank, one.end_unix_ns) for rank, one in zip(match.ranks, match.records, strict=True)}
    last, end = max(arrivals.values()), max(ends.values())
    if match.rule in ("from_root", "to_root"):
        if match.root is None or match.root not in ends:
            return None
        if match.rule == "to_root":
            end = ends[match.root]
        elif arrivals[match.root] < last - residual:
            return None
    return end - last if end - last > residual else None
