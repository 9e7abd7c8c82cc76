"""Imposed wait of each rank, from matched collectives.

On a device, a rank arrives at a collective when its kernel starts. All kernels of a collective end together, so each collective
is its own clock: the rank with the shortest kernel arrived last, and the others waited for as long as their kernels took longer.
On the CPU, a rank arrives when the calling thread enqueues the collective, because a worker thread may start late for reasons of
its own. Ends are less sharp there, so arrivals are compared on the corrected clock.

Waits for a root, or of a root, come from ``waiting``. Waits in sends and receives count as waiting, but not as imposed wait:
between the stages of a pipeline most of them are its schedule.

A wait is charged to its origin: a rank that was last because another group had kept it waiting is a victim itself (``origin``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankscope.analysis.collectives.arrivals import FROM_ROOT, Arrivals, Flags, Floats, Numbers, combined, numbered, offsets, sums
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.origin import Meeting, charge_origins
from rankscope.analysis.collectives.spans import Spans, covered, unions
from rankscope.analysis.collectives.waiting import NOBODY_WAITED, Waits

Group = tuple[str | None, tuple[int, ...]]
"""Name and members of a process group."""

Row = tuple[float, float, int]
"""Imposed wait in microseconds, its exposed part in microseconds, and the number of steps with such a wait."""


@dataclass(frozen=True)
class WaitsAt:
    """Waits at each collective, [arrivals] with offsets [instances + 1], in microseconds; instances ascend by step."""

    step: Numbers
    """Step of each instance."""
    first: Numbers
    member: Numbers
    """Rank of each arrival, as its place in the ranks of ``Blame``."""
    waited_us: Floats
    """Wait for the last rank; 0 where it is below the clocks' residual."""
    exposed_us: Floats
    """The part of it that no compute hid."""
    gain_of: Numbers
    """Instance of each gain, [gains]."""
    gain_by: Numbers
    """Rank of each gain, as its place."""
    gain_us: Floats
    """How much earlier the other ranks could have continued, had this rank not been the last: last arrival minus the one before
    it. There is none where the difference is below the clocks' residual."""

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def instance(self) -> Numbers:
        """Instance of each arrival."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))


@dataclass(frozen=True)
class Blame:
    """Waits of all ranks, in microseconds."""

    ranks: list[int]
    imposed_us: dict[int, float]
    """Per rank: the wait it imposed on others, summed over victims and steps, overlapping waits of a victim counted once. Waits
    below the clocks' residual are charged to no rank."""
    exposed_us: dict[int, float]
    """Per rank: the part of its imposed wait that the victims' compute did not hide."""
    transfer_us: dict[int, float]
    """Per rank: time in collectives without waiting. Per collective, it is the shortest duration over its ranks."""
    wait_us: dict[int, float]
    """Per rank: time in collectives beyond ``transfer_us``."""
    at: WaitsAt
    rows: dict[Group, dict[tuple[int, int], Row]] = field(default_factory=dict)
    """Imposed wait per process group and (origin, victim). Overlapping waits count once within a group."""
    imposed_at_us: dict[tuple[int, int], float] = field(default_factory=dict)
    """``imposed_us`` by (rank, step), where there was any."""

    @cached_property
    def steps(self) -> list[int]:
        """Steps with a match, ascending."""
        steps: list[int] = np.unique(self.at.step).tolist()
        return steps

    def share(self, rank: int) -> float | None:
        """Return this rank's share of all imposed wait, or ``None`` when no rank waited."""
        total = sum(self.imposed_us.values())
        return self.imposed_us[rank] / total if total > 0 else None


@dataclass(frozen=True)
class _Charges:
    """Waits, or parts of one, and the ranks that they are charged to, [charges]."""

    arrival: Numbers
    """Arrival of the victim."""
    origin: Numbers
    """Rank that it is charged to."""
    start: Numbers
    """On the victim's own clock, as its compute."""
    end: Numbers
    amount: Floats
    """Nanoseconds, before the span was cut to whole ones."""

    def chosen(self, wanted: Flags) -> _Charges:
        return _Charges(self.arrival[wanted], self.origin[wanted], self.start[wanted], self.end[wanted], self.amount[wanted])


class _Lateness(NamedTuple):
    """How long each arrival waited for the last one, in nanoseconds."""

    last: Numbers
    """The arrival that came last, [instances]."""
    wait: Numbers
    counted: Numbers
    """The waits above the clocks' residual, else 0."""
    exposed: Numbers
    """The part of these that no compute hid."""


def assign_blame(matches: Arrivals, clocks: Clocks, ranks: Sequence[int], directed: Waits = NOBODY_WAITED) -> Blame:
    """Return the imposed wait of every rank of ``ranks``; ``directed``: waits in operations that are not among ``matches``."""
    ordered = sorted(ranks)
    threshold = clocks.residual_ns or 0.0
    late = _lateness(matches, clocks, threshold)
    charges = _charged(matches, clocks, late, threshold)
    every = matches.joined(directed.judged)
    of_roots = _of_roots(directed, len(matches.row))
    imposed, bare, imposed_at, rows = _sums(every, _joined(charges, of_roots), ordered)
    transfer, waiting = _times(matches, directed, ordered)
    wait = np.concatenate([late.counted, np.zeros(len(directed.judged.row), np.int64)])
    wait[of_roots.arrival] = of_roots.end - of_roots.start
    exposed = np.concatenate([late.exposed, _exposed_ns(directed.judged, wait[len(matches.row) :])])
    gains_of_roots = _gains_of_roots(every, directed, of_roots)
    whole = np.arange(len(every)) < len(matches)
    whole[gains_of_roots[0]] = True
    gains = _gains(matches, late, charges, threshold)
    instance, rank = (np.concatenate([gains[at], gains_of_roots[at]]) for at in (0, 1))
    gain_us = np.concatenate([gains[2], gains_of_roots[2]])
    return Blame(
        ranks=ordered,
        imposed_us=imposed,
        exposed_us=bare,
        transfer_us=transfer,
        wait_us=waiting,
        at=_waits_at(every, whole, (wait, exposed), (instance, rank, gain_us), ordered),
        rows=rows,
        imposed_at_us=imposed_at,
    )


def _lateness(matches: Arrivals, clocks: Clocks, threshold: float) -> _Lateness:
    """Return the waits on a clock that the ranks of a collective share."""
    on_cpu = matches.most(matches.records.on_cpu[matches.row])[matches.instance]
    arrival = -matches.inside_ns
    if on_cpu.any():
        arrival = np.where(on_cpu, clocks.corrected(matches.rank, matches.arrival_ns), arrival)
    latest = matches.most(arrival)[matches.instance]
    last = matches.most(np.where(arrival == latest, np.arange(len(arrival)), -1))
    wait = latest - arrival
    counted = np.where(wait > threshold, wait, 0)
    return _Lateness(last, wait, counted, _exposed_ns(matches, counted))


def _exposed_ns(some: Arrivals, wait: Numbers) -> Numbers:
    """Return the part of each wait [arrivals] that the compute recorded with the collective did not hide."""
    at = np.flatnonzero(wait > 0)
    start = some.arrival_ns[at]
    exposed = wait.copy()
    exposed[at] -= covered((np.arange(len(at)), start, start + wait[at]), unions(some.busy(at)))
    return exposed


def _charged(matches: Arrivals, clocks: Clocks, late: _Lateness, threshold: float) -> _Charges:
    """Return what each wait is charged to."""
    wait = late.counted
    split = _split(matches, clocks, late, threshold) if _share_ranks(matches) else _NO_CHARGES
    whole = wait > 0
    whole[split.arrival] = False
    at = np.flatnonzero(whole)
    start = matches.arrival_ns[at]
    origin = matches.rank[late.last[matches.instance[at]]]
    return _joined(_Charges(at, origin, start, start + wait[at], wait[at].astype(np.float64)), split)


def _joined(one: _Charges, other: _Charges) -> _Charges:
    return _Charges(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in _Charges.__dataclass_fields__))


_NOTHING = np.zeros(0, np.int64)
_NO_CHARGES = _Charges(_NOTHING, _NOTHING, _NOTHING, _NOTHING, np.zeros(0))


def _share_ranks(matches: Arrivals) -> bool:
    """Return whether any rank is in several teams: else whoever came last caused the wait."""
    members = [rank for team in matches.teams for rank in team]
    return len(set(members)) < len(members)


def _split(matches: Arrivals, clocks: Clocks, late: _Lateness, threshold: float) -> _Charges:
    """Return the parts of the waits that are not charged to the last rank alone."""
    when = clocks.corrected(matches.rank[late.last], matches.arrival_ns[late.last])
    found: list[tuple[int, int, int, int, float]] = []
    order = np.argsort(matches.step, kind="stable")
    edges = np.flatnonzero(np.diff(matches.step[order])) + 1
    for step in np.split(order, edges):
        meetings: list[Meeting] = []
        shares: list[dict[int, float]] = []
        places: list[dict[int, int]] = []
        for at in step.tolist():
            first, past, culprit = int(matches.first[at]), int(matches.first[at + 1]), int(late.last[at])
            ranks, here = matches.rank[first:past].tolist(), late.wait[first:past].tolist()
            bare = late.exposed[first:past].tolist()
            waited = {rank: wait for rank, wait in zip(ranks, here, strict=True) if wait > 0}
            meetings.append(
                Meeting(int(matches.step[at]), matches.teams[matches.team[at]], ranks[culprit - first], int(when[at]), waited)
            )
            shares.append({rank: ns / wait for rank, wait, ns in zip(ranks, here, bare, strict=True) if wait > 0})
            places.append(dict(zip(ranks, range(first, past), strict=True)))
        charged = charge_origins(meetings, shares, least_ns=threshold)
        for meeting, place, charges in zip(meetings, places, charged, strict=True):
            for victim, charge in charges.items():
                begin = int(matches.arrival_ns[place[victim]])
                stop = begin + meeting.waits_ns[victim]
                # The origin with the largest charge comes last, as its delay must be removed for the others to continue earlier.
                for origin, amount in sorted(charge.items(), key=lambda part: part[1]):
                    end = min(begin + round(amount), stop)
                    found.append((place[victim], origin, begin, end, amount))
                    begin = end
    if not found:
        return _NO_CHARGES
    arrivals, origins, begins, ends, amounts = zip(*found, strict=True)
    return _Charges(np.array(arrivals), np.array(origins), np.array(begins), np.array(ends), np.array(amounts, np.float64))


_Gains = tuple[Numbers, Numbers, Floats]
"""Instance, rank and microseconds of each gain."""


def _gains(matches: Arrivals, late: _Lateness, charges: _Charges, threshold: float) -> _Gains:
    """Return the gains at collectives of all ranks: the wait of the rank that waited least, by what it is charged to."""
    wait, place = late.wait, np.arange(len(late.wait))
    others = np.where(place == late.last[matches.instance], np.iinfo(np.int64).max, wait)
    least = matches.least(others)[matches.instance]
    soonest = matches.least(np.where(others == least, place, len(place)))
    is_soonest = np.zeros(len(wait), np.bool_)
    is_soonest[soonest[wait[soonest] > threshold]] = True
    chosen = charges.chosen(is_soonest[charges.arrival])
    return matches.instance[chosen.arrival], chosen.origin, chosen.amount / 1000


def _of_roots(directed: Waits, offset: int) -> _Charges:
    """Return the waits in operations with a root. ``offset``: of the arrivals of ``directed``."""
    chosen = ~directed.is_of_pair
    waited = (directed.end - directed.start)[chosen].astype(np.float64)
    return _Charges(
        directed.arrival[chosen] + offset, directed.origin[chosen], directed.start[chosen], directed.end[chosen], waited
    )


def _gains_of_roots(every: Arrivals, directed: Waits, of_roots: _Charges) -> _Gains:
    """Return the gains at operations with a root, of those in which all ranks that can wait did."""
    # If every rank that can wait did, all of them waited for the same rank.
    instance = every.instance[of_roots.arrival]
    waits = np.bincount(instance, minlength=len(every))
    complete = waits == np.where(every.rule == FROM_ROOT, every.count - 1, 1)
    first, number = numbered(instance)
    sooner = (directed.end - directed.since)[~directed.is_of_pair]
    gain = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(gain, number, sooner)
    whole = complete[instance[first]]
    return instance[first][whole], of_roots.origin[first][whole], gain[whole] / 1000


def _times(matches: Arrivals, directed: Waits, ranks: Sequence[int]) -> tuple[dict[int, float], dict[int, float]]:
    """Return each rank's time in collectives without waiting, and with waiting."""
    transfer, waiting = np.zeros(len(ranks)), np.zeros(len(ranks))
    shortest = matches.shortest_ns[matches.instance]
    waited = directed.end - directed.start
    for times, rank, ns in (
        (transfer, matches.rank, shortest),
        (waiting, matches.rank, matches.inside_ns - shortest),
        (transfer, directed.judged.rank, directed.judged.inside_ns),
        (waiting, directed.waiter, waited),
        (transfer, directed.waiter, -waited),
    ):
        times[:] += sums(np.searchsorted(ranks, rank), ns, len(ranks))
    return dict(zip(ranks, (transfer / 1000).tolist(), strict=True)), dict(zip(ranks, (waiting / 1000).tolist(), strict=True))


def _sums(
    every: Arrivals, charges: _Charges, ranks: Sequence[int]
) -> tuple[dict[int, float], dict[int, float], dict[tuple[int, int], float], dict[Group, dict[tuple[int, int], Row]]]:
    """Return the imposed waits and their exposed parts by rank, those by rank and step, and those by group and pair."""
    victim, step = every.rank[charges.arrival], every.step[every.instance[charges.arrival]]
    group_first, group = numbered(every.group, every.team)
    group = group[every.instance[charges.arrival]]
    place, start, end = every.busy(np.arange(len(every.row)))
    code = combined(np.append(victim, every.rank[place]), np.append(step, every.step[every.instance[place]]))
    busy = unions((code[len(victim) :], start, end))
    of_victim = code[: len(victim)]
    first, number = numbered(charges.origin, victim, step)
    whole, bare = _measured(number, first, charges, of_victim, busy)
    origin = charges.origin[first]
    column = np.searchsorted(ranks, origin)
    imposed, exposed = (sums(column, ns, len(ranks)) / 1000 for ns in (whole, bare))
    at_first, at = numbered(origin, step[first])
    imposed_at = sums(at, whole, len(at_first)) / 1000
    rows_first, rows_number = numbered(group, charges.origin, victim, step)
    if len(rows_first) > len(first):
        whole, bare = _measured(rows_number, rows_first, charges, of_victim, busy)
    rows: dict[Group, dict[tuple[int, int], Row]] = {}
    pair_first, pair = numbered(group[rows_first], charges.origin[rows_first], victim[rows_first])
    both = (sums(pair, ns, len(pair_first)) / 1000 for ns in (whole, bare))
    chosen = rows_first[pair_first]
    columns = (group[chosen], charges.origin[chosen], victim[chosen], *both, np.bincount(pair, minlength=len(pair_first)))
    names = [(every.group_names[every.group[at]], every.teams[every.team[at]]) for at in group_first.tolist()]
    for number_of, cause, waiter, us, bare_us, steps in sorted(
        zip(*(one.tolist() for one in columns), strict=True), key=lambda row: row[0]
    ):
        rows.setdefault(names[number_of], {})[cause, waiter] = (us, bare_us, steps)
    keys = zip(origin[at_first].tolist(), step[first][at_first].tolist(), strict=True)
    return (
        dict(zip(ranks, imposed.tolist(), strict=True)),
        dict(zip(ranks, exposed.tolist(), strict=True)),
        dict(zip(keys, imposed_at.tolist(), strict=True)),
        rows,
    )


def _measured(number: Numbers, first: Numbers, charges: _Charges, of_victim: Numbers, busy: Spans) -> tuple[Numbers, Numbers]:
    """Return the length of the union of each set of charges, and of its part outside of the victim's compute."""
    of, start, end = unions((number, charges.start, charges.end))
    bare = end - start - covered((of_victim[first][of], start, end), busy)
    whole, exposed = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.add.at(whole, of, end - start)
    np.add.at(exposed, of, bare)
    return whole, exposed


def _waits_at(every: Arrivals, whole: Flags, waits: tuple[Numbers, Numbers], gains: _Gains, ranks: Sequence[int]) -> WaitsAt:
    """Return the ``waits`` and their exposed parts at the instances where ``whole``, ordered by step."""
    wait, exposed = waits
    order = np.flatnonzero(whole)
    order = order[np.argsort(every.step[order], kind="stable")]
    count = every.count[order]
    first = offsets(count)
    arrival = np.repeat(every.first[:-1][order] - first[:-1], count) + np.arange(int(count.sum()))
    number = np.zeros(len(every), np.int64)
    number[order] = np.arange(len(order))
    return WaitsAt(
        step=every.step[order],
        first=first,
        member=np.searchsorted(ranks, every.rank[arrival]),
        waited_us=wait[arrival] / 1000,
        exposed_us=exposed[arrival] / 1000,
        gain_of=number[gains[0]],
        gain_by=np.searchsorted(ranks, gains[1]),
        gain_us=gains[2],
    )
