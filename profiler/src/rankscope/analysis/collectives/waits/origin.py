"""Origins of waits: a rank that comes last because it had itself waited in another group is a victim, too.

The collectives of a step are processed in the order in which their last ranks arrived, on the common clock. Each rank carries
its delays so far: per group and origin, the waiting that no compute hid. When the rank then comes last at a collective of another
group, the wait of each victim is charged to those origins. A charge is at most the amount by which the origin delayed the last
rank more than the victim, and all charges together are at most the wait. The rest of the wait is charged to the last rank itself.
Charged waits delay the victims in turn, so chains over any number of groups lead back to their origin. Processing forward in
time rules out cycles.

Collectives that share no rank do not depend on each other. So one turn of all groups and steps is processed at once, as arrays
[collectives, ranks, origins].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals, Flags, Floats, Numbers, combined, numbered
from rankscope.analysis.trace.intervals import by_key

MAX_ORIGINS: Final = 16
"""Number of origins kept per rank and group, the largest; delays by others are charged to the last rank to arrive."""

_LEAST_PART: Final = 0.02
"""Smallest part of a wait that is charged separately."""


class ArrivalLateness(NamedTuple):
    """How long each arrival waited for the last one, in nanoseconds."""

    last: Numbers
    """The arrival that came last, [instances]."""
    wait: Numbers
    counted: Numbers
    """The waits above the clocks' residual, else 0."""
    exposed: Numbers
    """The part of these that no compute hid."""


class WaitParts(NamedTuple):
    """Parts of waits by origin, [parts]. Those of one wait follow each other, the largest last."""

    arrival: Numbers
    """Arrival of the victim."""
    origin: Numbers
    amount: Floats
    """Nanoseconds."""


def charge_origins(matches: Arrivals, late: ArrivalLateness, when_ns: Numbers, least_ns: float) -> WaitParts:
    """Return the parts of the waits that are not charged to the last rank alone.

    ``when_ns``: arrival of the last rank on the common clock, [instances]. Delays of up to ``least_ns`` are noise.
    """
    parts = [WaitParts(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    node = numbered(matches.step[matches.instance], matches.rank)[1]
    slot = _slots(node, matches.team[matches.instance])
    # Where no rank is in several groups, the last rank caused the wait.
    if len(slot) and slot.max() > 0:
        delays = _GroupDelays(int(node.max()) + 1, int(slot.max()) + 1, int(matches.rank.max()) + 1)
        exposed = late.exposed / np.maximum(late.counted, 1)
        for turn in _turns(matches, node, when_ns):
            at = matches.first[turn][:, None] + np.arange(matches.count[turn[0]])
            last = late.last[turn] - matches.first[turn]
            part = delays.meet(_Meetings(node[at], slot[at], matches.rank[at], last, late.counted[at], exposed[at]), least_ns)
            parts.append(WaitParts(at.ravel()[part.arrival], part.origin, part.amount))
    return WaitParts(*map(np.concatenate, zip(*parts, strict=True)))


def _slots(node: Numbers, team: Numbers) -> Numbers:
    """Return the number of each arrival's team among those of its rank in the step."""
    _, first, pair = np.unique(combined(node, team), return_index=True, return_inverse=True)
    of_pair = node[first]
    return np.asarray((np.arange(len(first)) - np.searchsorted(of_pair, of_pair))[pair])


def _turns(matches: Arrivals, node: Numbers, when_ns: Numbers) -> Iterator[Numbers]:
    """Yield collectives of equally many ranks that share none of them, each after all that its ranks were in before."""
    turn, latest = np.zeros(len(matches), np.int64), np.zeros(int(node.max()) + 1, np.int64)
    edges = matches.first.tolist()
    for at in np.lexsort((when_ns, matches.step)).tolist():
        members = node[edges[at] : edges[at + 1]]
        turn[at] = latest[members] = latest[members].max() + 1
    yield from by_key(turn, matches.count)


class _Meetings(NamedTuple):
    """Collectives of equally many ranks that share none of them, [collectives, ranks]."""

    node: Numbers
    """Number of each rank in its step."""
    slot: Numbers
    """Number of the group among those of the rank."""
    rank: Numbers
    last: Numbers
    """Place of the rank that came last, [collectives]."""
    wait: Numbers
    """Nanoseconds; 0 for a rank that did not wait."""
    exposed: Floats
    """Share of the wait that no compute hid."""


class _ChargeColumns:
    """Ranks that the waits at each collective may be charged to: its last rank and what had delayed that rank before."""

    def __init__(self, last: Numbers, key: Numbers, delay: Floats, width: int) -> None:
        """Create the columns. ``key``: collective times ``width`` plus origin; ``delay``: of the last rank, by that origin."""
        row = np.arange(len(last))
        self._width = width
        self._keys = np.sort(np.append(key, row * width + last))
        number, origin = np.divmod(self._keys, width)
        self._column = np.arange(len(self._keys)) - np.searchsorted(number, number)
        shape = len(last), int(self._column.max()) + 1
        self.origin = np.full(shape, -1)
        self.origin[number, self._column] = origin
        self.delay = np.zeros(shape)
        """Nanoseconds, [collectives, columns]."""
        self.delay[key // width, self.find(key)] = delay
        self.last: Numbers = self.find(row * width + last)
        """Column of the last rank, [collectives]."""

    def find(self, key: Numbers) -> Numbers:
        """Return the column of each key, or -1."""
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(self._keys[place] == key, self._column[place], -1)


class _GroupDelays:
    """Delays of each rank in a step so far, by the group in which it waited and by origin: [nodes, slots, origins]."""

    def __init__(self, nodes: int, slots: int, ranks: int) -> None:
        self._width = ranks
        self._origin = np.zeros((nodes, slots, MAX_ORIGINS), np.int64)
        self._amount = np.zeros((nodes, slots, MAX_ORIGINS))

    def meet(self, meetings: _Meetings, least_ns: float) -> WaitParts:
        """Charge the waits at these collectives, and add them to the delays of the ranks."""
        victim, wait = meetings.wait > 0, meetings.wait[..., None].astype(np.float64)
        last = np.arange(len(meetings.last)), meetings.last
        outside = self._outside(meetings.node[last], meetings.slot[last])
        columns = self._columns(meetings.rank[last], meetings.node[last], outside, least_ns)
        before = self._before(meetings, columns)
        charge = columns.delay[:, None] - before
        is_own = columns.origin[:, None] == meetings.rank[..., None]
        charge[is_own | ~victim[..., None] | (charge <= _LEAST_PART * wait)] = 0
        total = charge.sum(axis=-1, keepdims=True)
        is_whole = (total > 0) & (total >= (1 - _LEAST_PART) * wait)
        charge *= np.divide(wait, total, out=np.ones_like(total), where=is_whole)
        charge[last[0], :, columns.last] = np.where(is_whole, 0, wait - total)[..., 0]
        shown = charge * meetings.exposed[..., None]
        self._settle(meetings.node[last], outside, columns, _medians(before + charge - shown, victim))
        of_all = _medians(shown, victim)
        of_all[last[0], columns.last] = 0
        shown[last] = np.where(np.isfinite(of_all), of_all, 0)
        self._add(meetings, columns, shown)
        return _parts(charge, columns.origin, np.flatnonzero(total > 0))

    def _outside(self, node: Numbers, slot: Numbers) -> Floats:
        """Return the delays of ranks [ranks, slots, origins], without those in the group of ``slot``."""
        amount = self._amount[node]
        amount[*np.indices(node.shape, sparse=True), slot] = 0
        return amount

    def _columns(self, last: Numbers, node: Numbers, outside: Floats, least_ns: float) -> _ChargeColumns:
        """Return the columns of collectives at which ``last`` came last, with its delays ``outside`` of their groups."""
        at = np.nonzero(outside)
        key, place = np.unique(at[0] * self._width + self._origin[node][at], return_inverse=True)
        delay = np.bincount(place, weights=outside[at], minlength=len(key))
        counts = (delay > least_ns) & (key % self._width != last[key // self._width])
        return _ChargeColumns(last, key[counts], delay[counts], self._width)

    def _before(self, meetings: _Meetings, columns: _ChargeColumns) -> Floats:
        """Return the delays of each rank outside of the group by the origins of the columns."""
        count = columns.origin.shape[1]
        if count == 1:
            return np.zeros((*meetings.node.shape, 1))
        amount = self._outside(meetings.node, meetings.slot)
        at = np.nonzero(amount)
        column = columns.find(at[0] * self._width + self._origin[meetings.node][at])
        place = (at[0] * meetings.node.shape[1] + at[1]) * count + column
        chosen = column >= 0
        sums = np.bincount(place[chosen], weights=amount[at][chosen], minlength=meetings.node.size * count)
        return np.asarray(sums, np.float64).reshape(*meetings.node.shape, count)

    def _settle(self, node: Numbers, outside: Floats, columns: _ChargeColumns, kept_delay: Floats) -> None:
        """Reduce the last ranks' delays ``outside`` of the groups to the part that keeps counting, [collectives, columns].

        That is by how much the others were delayed too, or compute hid their waits. Of the rest, what the others waited for now
        delays all members of the group, and the rank has recovered what remains.
        """
        share = np.minimum(1, np.divide(kept_delay, columns.delay, out=np.ones_like(kept_delay), where=columns.delay > 0))
        at = np.nonzero(outside)
        column = columns.find(at[0] * self._width + self._origin[node][at])
        self._amount[node[at[0]], at[1], at[2]] = outside[at] * np.where(column < 0, 1, share[at[0], column])

    def _add(self, meetings: _Meetings, columns: _ChargeColumns, amount: Floats) -> None:
        """Add amounts [collectives, ranks, columns] to the delays in the group of each collective; keep the largest."""
        index = meetings.node, meetings.slot
        origin, before = self._origin[index], self._amount[index]
        at = np.nonzero(before)
        column = columns.find(at[0] * self._width + origin[at])
        number, rank, place = (values[column >= 0] for values in at)
        column = column[column >= 0]
        before[number, rank, place] += amount[number, rank, column]
        amount[number, rank, column] = 0
        if amount.any():
            names = np.broadcast_to(columns.origin[:, None], amount.shape)
            before, origin = np.concatenate([before, amount], axis=-1), np.concatenate([origin, names], axis=-1)
            largest = np.argpartition(-before, MAX_ORIGINS - 1, axis=-1)[..., :MAX_ORIGINS]
            before, origin = np.take_along_axis(before, largest, axis=-1), np.take_along_axis(origin, largest, axis=-1)
            self._origin[index] = origin
        self._amount[index] = before


def _medians(values: Floats, chosen: Flags) -> Floats:
    """Return the medians [collectives, columns] of values over the ranks where ``chosen`` [collectives, ranks]; else infinity."""
    values = np.sort(np.where(chosen[..., None], values, np.inf), axis=1)
    count, row = chosen.sum(axis=1), np.arange(len(values))
    return np.asarray((values[row, (count - 1) // 2] + values[row, count // 2]) / 2)


def _parts(charge: Floats, origin: Numbers, split: Numbers) -> WaitParts:
    """Return the charges [collectives, ranks, columns] of the arrivals ``split``."""
    amount = charge.reshape(-1, charge.shape[-1])[split]
    order = np.argsort(amount, axis=-1, kind="stable")
    amount = np.take_along_axis(amount, order, axis=-1)
    names = np.take_along_axis(origin[split // charge.shape[1]], order, axis=-1)
    row, column = np.nonzero(amount)
    return WaitParts(split[row], names[row, column], amount[row, column])
