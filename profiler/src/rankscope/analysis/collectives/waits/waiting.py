"""Directed waits, in operations that not all ranks leave together: sends and receives, and operations with a root.

The ends of an all-reduce coincide on all ranks, but those of directed operations do not. So their arrivals are compared on
corrected clocks. The later side is the origin. A side that left before the other arrived did not wait for it, because its
message fitted into a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rankscope.analysis.collectives.arrivals import FROM_ROOT, NO_ARRIVALS, PAIR, TO_ROOT, Arrivals, Flags, Numbers
from rankscope.analysis.collectives.clock import TOLERANCE_NS, Clocks
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.collectives.world import connected

_NOTHING: Final = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Waits:
    """All directed waits, [waits], and the instances that they are in. Times are nanoseconds on the waiter's own clock."""

    judged: Arrivals = NO_ARRIVALS
    """Instances that could be judged."""
    transfer_ns: Numbers = field(default_factory=_NOTHING.copy)
    """Duration of the transfer of each of these after the waiting; 0 where that is unknown."""
    arrival: Numbers = field(default_factory=_NOTHING.copy)
    """Arrival of the waiter, as an index into those of ``judged``."""
    origin: Numbers = field(default_factory=_NOTHING.copy)
    """Rank that is waited for."""
    start: Numbers = field(default_factory=_NOTHING.copy)
    end: Numbers = field(default_factory=_NOTHING.copy)
    since: Numbers = field(default_factory=_NOTHING.copy)
    """Time from which on the waiter waited for the origin alone; before that, it also waited for others."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Number of matched instances that could not be judged, by reason."""

    @property
    def instance(self) -> Numbers:
        """Instance of each wait."""
        return self.judged.instance[self.arrival]

    @property
    def waiter(self) -> Numbers:
        """Rank that waits."""
        return self.judged.rank[self.arrival]

    @property
    def is_of_pair(self) -> Flags:
        """Whether each wait is in a send or receive."""
        return np.asarray(self.judged.rule[self.instance] == PAIR)

    def chosen(self, wanted: Flags) -> Waits:
        """Return the waits in the instances where ``wanted``."""
        if wanted.all():
            return self
        inside = np.repeat(wanted, self.judged.count)
        rows = inside[self.arrival]
        origin, start, end, since = (values[rows] for values in (self.origin, self.start, self.end, self.since))
        arrival = (np.cumsum(inside) - 1)[self.arrival[rows]]
        return Waits(self.judged.chosen(wanted), self.transfer_ns[wanted], arrival, origin, start, end, since, self.excluded)


NO_WAITS: Final = Waits()


def waits_of(matching: Matching, clocks: Clocks, machines: Mapping[int, str]) -> Waits:
    """Return the waits in the directed matches, without those up to the residual and between ranks of different islands."""
    residual = TOLERANCE_NS if clocks.residual_ns is None else round(clocks.residual_ns)
    directed = matching.directed
    if not len(directed):
        return Waits()
    islands = clock_islands(matching.matches, machines)
    ranks, place = np.unique(directed.rank, return_inverse=True)
    island = np.array([islands.get(rank, -1 - rank) for rank in ranks.tolist()])[place]
    comparable = directed.least(island) == directed.most(island)
    without_clock = len(directed) - int(comparable.sum())
    judged = directed.chosen(comparable)
    arrival = clocks.corrected(judged.rank, judged.arrival_ns)
    end = clocks.corrected(judged.rank, judged.end_ns)
    waiter, origin, since = _dependencies(judged, arrival)
    own_arrival, last = arrival[waiter], arrival[origin]
    waited = (last - own_arrival > residual) & (end[waiter] >= last)
    waiter, origin, since, own_arrival, last = waiter[waited], origin[waited], since[waited], own_arrival[waited], last[waited]
    waiter_arrival = judged.arrival_ns[waiter]
    return Waits(
        judged,
        _transfers(judged, arrival, end, residual),
        waiter,
        judged.rank[origin],
        waiter_arrival,
        waiter_arrival + last - own_arrival,
        waiter_arrival + since - own_arrival,
        {"no_common_clock": without_clock} if without_clock else {},
    )


def _root(judged: Arrivals) -> Numbers:
    """Return the arrival of the root of each instance; -1 where there is none."""
    if not len(judged):
        return _NOTHING
    is_root = judged.rank == judged.records.root[judged.leader][judged.instance]
    return np.asarray(judged.most(np.where(is_root, np.arange(len(is_root)), -1)))


def _dependencies(judged: Arrivals, arrival: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the arrivals that may wait, those that they wait for, and when all but these have come."""
    place, root, instance = np.arange(len(arrival)), _root(judged), judged.instance
    rule, of_root = judged.rule[instance], root[instance]
    pairs = place[rule == PAIR]
    partner = judged.first[instance[pairs]] + judged.first[instance[pairs] + 1] - 1 - pairs
    others = place[(rule == FROM_ROOT) & (of_root >= 0) & (of_root != place)]
    # A root waits for the last of the others; of several, for the first rank.
    roots = root[(judged.rule == TO_ROOT) & (root >= 0)]
    part = place[(rule == TO_ROOT) & (of_root >= 0) & (of_root != place)]
    order = part[np.lexsort((-judged.rank[part], arrival[part], instance[part]))]
    final = np.append(instance[order][1:] != instance[order][:-1], np.ones(min(1, len(order)), np.bool_))
    last = order[final]
    at = np.flatnonzero(final)
    next_last = np.where(np.diff(at, prepend=-1) > 1, order[at - 1], roots)
    return (
        np.concatenate([pairs, others, roots]),
        np.concatenate([partner, of_root[others], last]),
        np.concatenate([arrival[pairs], arrival[others], np.maximum(arrival[roots], arrival[next_last])]),
    )


def _transfers(judged: Arrivals, arrival: Numbers, end: Numbers, residual: int) -> Numbers:
    """Return the time from the last arrival to the last end.

    0 where a receiver came after the root, because the root may have sent most of the data by then. Also 0 where it does not
    exceed the clocks' residual.
    """
    root = _root(judged)
    last, until = judged.most(arrival), np.array(judged.most(end))
    rooted = judged.rule != PAIR
    to_root = (judged.rule == TO_ROOT) & (root >= 0)
    until[to_root] = end[root[to_root]]
    is_known = ~rooted | (root >= 0)
    is_known &= ~((judged.rule == FROM_ROOT) & (arrival[root] < last - residual))
    transfer = until - last
    return np.where(is_known & (transfer > residual), transfer, 0)


def clock_islands(matches: Arrivals, machines: Mapping[int, str]) -> dict[int, int]:
    """Return the island number of each rank; clocks can be compared within an island.

    The ranks of an island are on one machine, or linked by collectives that end on all of them at once.
    """
    groups: list[tuple[int | str, ...]] = [*machines.items(), *matches.teams]
    return {member: number for member, number in connected(groups).items() if isinstance(member, int)}
