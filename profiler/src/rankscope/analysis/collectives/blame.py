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

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matching import Match
from rankscope.analysis.collectives.origin import Charge, Meeting, charge_origins
from rankscope.analysis.collectives.waiting import NOBODY_WAITED, Wait, Waits
from rankscope.runs.records import CollectiveRecord

Span = tuple[int, int]
"""Start and end. A merged list of them is sorted and disjoint and has no empty interval, like a merged set of ``intervals``."""


def merge(spans: Iterable[Span]) -> list[Span]:
    """Merge any intervals, in any order; empty and negative ones vanish, touching ones become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length(merged: Iterable[Span]) -> int:
    """Return the total length of a merged list."""
    return sum(end - start for start, end in merged)


def covered(merged: Iterable[Span], by: Sequence[Span]) -> int:
    """Return the length of the part of one merged list that lies in another one."""
    total, first = 0, 0
    for start, end in merged:
        while first < len(by) and by[first][1] <= start:
            first += 1
        for at in range(first, len(by)):
            low, high = by[at]
            if low >= end:
                break
            # Comparisons take a third of the time of min and max.
            low = start if low < start else low  # noqa: FURB136
            total += (end if end < high else high) - low  # noqa: FURB136
    return total


Group = tuple[str | None, tuple[int, ...]]
"""Name and members of a process group."""

Row = tuple[float, float, int]
"""Imposed wait in microseconds, its exposed part in microseconds, and the number of steps with such a wait."""


class Blame(msgspec.Struct, frozen=True):
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
    steps: list[int]
    """Steps with a match, ascending."""
    gain_us: NDArray[np.float64]
    """[instances, ranks]: how much earlier the other ranks could have continued, had this rank not been the last: last arrival
    minus the one before it. 0 for all other ranks, and where the difference is below the clocks' residual."""
    instance_step: NDArray[np.int64]
    """[instances]: step of each instance, ascending."""
    waited_us: NDArray[np.float64]
    """[instances, ranks]: wait of each member for the last rank. 0 where it is below the clocks' residual, NaN for ranks that
    are not members."""
    exposed_at_us: NDArray[np.float64]
    """[instances, ranks]: the part of ``waited_us`` that no compute hid."""
    rows: dict[Group, dict[tuple[int, int], Row]] = msgspec.field(default_factory=dict)
    """Imposed wait per process group and (origin, victim). Overlapping waits count once within a group."""
    imposed_at_us: dict[tuple[int, int], float] = msgspec.field(default_factory=dict)
    """``imposed_us`` by (rank, step), where there was any."""

    def share(self, rank: int) -> float | None:
        """Return this rank's share of all imposed wait, or ``None`` when no rank waited."""
        total = sum(self.imposed_us.values())
        return self.imposed_us[rank] / total if total > 0 else None


def assign_blame(matches: Sequence[Match], clocks: Clocks, ranks: Sequence[int], directed: Waits = NOBODY_WAITED) -> Blame:
    """Return the imposed wait of every rank of ``ranks``; ``directed``: waits in operations that are not among ``matches``."""
    books = _Books(ranks)
    threshold = clocks.residual_ns or 0.0
    meetings = [_meeting(match, clocks) for match in matches]
    charged = charge_origins(
        meetings, lambda number, victim: _exposed(matches[number], meetings[number], victim), least_ns=threshold
    )
    for match, meeting, charges in zip(matches, meetings, charged, strict=True):
        books.enter(match, meeting, charges, threshold)
    books.enter_directed(directed)
    return books.closed()


class _Books:
    """Sums of waits, accumulated instance by instance."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = sorted(ranks)
        self._column = {rank: at for at, rank in enumerate(self._ranks)}
        self._transfer = dict.fromkeys(self._ranks, 0.0)
        self._waiting = dict.fromkeys(self._ranks, 0.0)
        self._groups: dict[Group, int] = {}
        """Process group to its number: comparing tuples of thousands of members is slow."""
        self._waits: dict[tuple[int, int, int], list[tuple[int, Span]]] = {}
        """(origin, victim, step) to waits: number of the group, and span of the wait."""
        self._compute: dict[tuple[int, int], list[Span]] = {}
        self._instances: list[tuple[int, dict[int, float], dict[int, float], dict[int, float]]] = []
        """Step, gain of origins, waits of members, their exposed parts, in microseconds."""

    def enter(self, match: Match, meeting: Meeting, charges: Mapping[int, Charge], threshold: float) -> None:
        """Add a collective in which every rank waits for all others."""
        shortest = min(match.inside_ns)
        transfer = shortest / 1000
        soonest, least = meeting.soonest
        charge = charges.get(soonest, {meeting.culprit: least}) if least > threshold else {}
        gain = {origin: amount / 1000 for origin, amount in charge.items()}
        waits = {rank: wait for rank, wait in meeting.waits_ns.items() if wait > threshold}
        exposed = dict.fromkeys(match.ranks, 0.0)
        waited = {rank: waits.get(rank, 0) / 1000 for rank in match.ranks}
        self._instances.append((match.step, gain, waited, exposed))
        group = self._number(match.group, meeting.members)
        # Spans are on the rank's own clock, as those of its compute are.
        for rank, record, here, inside in zip(match.ranks, match.records, match.arrivals_ns, match.inside_ns, strict=True):
            self._transfer[rank] += transfer
            self._waiting[rank] += (inside - shortest) / 1000
            if busy := _compute(record):
                self._compute.setdefault((rank, match.step), []).extend(busy)
            if wait := waits.get(rank):
                exposed[rank] = _exposed_ns(busy, (here, here + wait)) / 1000
                for origin, span in _parts(charges.get(rank), meeting.culprit, (here, here + wait)):
                    self._waits.setdefault((origin, rank, match.step), []).append((group, span))

    def enter_directed(self, directed: Waits) -> None:
        """Add the instances in which only some ranks wait for others."""
        for match, _ in directed.transfers_ns:
            for rank, record, inside in zip(match.ranks, match.records, match.inside_ns, strict=True):
                self._transfer[rank] += inside / 1000
                if record.compute_spans_us:
                    self._compute.setdefault((rank, match.step), []).extend(_compute(record))
        rooted: dict[int, list[Wait]] = {}
        for wait in directed.waits:
            match = wait.match
            self._waiting[wait.waiter] += (wait.end - wait.start) / 1000
            self._transfer[wait.waiter] -= (wait.end - wait.start) / 1000
            if match.rule != "pair":
                group = self._number(match.group, tuple(match.ranks))
                key = (wait.origin, wait.waiter, match.step)
                self._waits.setdefault(key, []).append((group, (wait.start, wait.end)))
                rooted.setdefault(id(match), []).append(wait)
        for found in rooted.values():
            match = found[0].match
            # Only if every rank that can wait did wait: then all of them waited for the same rank.
            if len(found) == (len(match.ranks) - 1 if match.rule == "from_root" else 1):
                gain = {found[0].origin: min(wait.end - wait.since for wait in found) / 1000}
                nothing = dict.fromkeys(match.ranks, 0.0)
                waited = nothing | {wait.waiter: (wait.end - wait.start) / 1000 for wait in found}
                exposed = nothing | {
                    wait.waiter: _exposed_ns(_compute(wait.record), (wait.start, wait.end)) / 1000 for wait in found
                }
                self._instances.append((match.step, gain, waited, exposed))

    def _number(self, group: str | None, members: tuple[int, ...]) -> int:
        return self._groups.setdefault((group, members), len(self._groups))

    def closed(self) -> Blame:
        """Return the sums."""
        hidden = {key: merge(spans) for key, spans in self._compute.items()}
        imposed = dict.fromkeys(self._ranks, 0.0)
        imposed_at: dict[tuple[int, int], float] = {}
        exposed = dict.fromkeys(self._ranks, 0.0)
        rows: dict[int, dict[tuple[int, int], Row]] = {}
        for (origin, victim, step), found in self._waits.items():
            busy = hidden.get((victim, step), [])
            groups, spans = zip(*found, strict=True)
            whole, bare = _measured(spans, busy)
            imposed[origin] += whole
            imposed_at[origin, step] = imposed_at.get((origin, step), 0.0) + whole
            exposed[origin] += bare
            for group in dict.fromkeys(groups):
                mine = [span for of, span in zip(groups, spans, strict=True) if of == group]
                part = (whole, bare) if len(mine) == len(spans) else _measured(mine, busy)
                row = rows.setdefault(group, {}).get((origin, victim), (0.0, 0.0, 0))
                rows[group][origin, victim] = (row[0] + part[0], row[1] + part[1], row[2] + 1)
        self._instances.sort(key=lambda one: one[0])
        return Blame(
            ranks=self._ranks,
            imposed_us=imposed,
            exposed_us=exposed,
            transfer_us=self._transfer,
            wait_us=self._waiting,
            steps=sorted({step for step, *_ in self._instances}),
            gain_us=self._matrix([gain for _, gain, *_ in self._instances], 0.0),
            instance_step=np.array([step for step, *_ in self._instances], dtype=np.int64),
            waited_us=self._matrix([waited for _, _, waited, _ in self._instances], np.nan),
            exposed_at_us=self._matrix([exposed for *_, exposed in self._instances], np.nan),
            rows={group: rows[number] for group, number in self._groups.items() if number in rows},
            imposed_at_us=imposed_at,
        )

    def _matrix(self, rows: Sequence[Mapping[int, float]], default: float) -> NDArray[np.float64]:
        matrix = np.full((len(rows), len(self._ranks)), default)
        for number, row in enumerate(rows):
            for rank, value in row.items():
                matrix[number, self._column[rank]] = value
        return matrix


def _parts(charge: Charge | None, culprit: int, waited: Span) -> list[tuple[int, Span]]:
    """Split one wait into the spans that each origin is charged with. The origin with the largest charge comes last, because
    its delay must be removed for the others to continue earlier.
    """
    if charge is None:
        return [(culprit, waited)]
    parts: list[tuple[int, Span]] = []
    begin, stop = waited
    for origin, amount in sorted(charge.items(), key=lambda part: part[1]):
        end = min(begin + round(amount), stop)
        parts.append((origin, (begin, end)))
        begin = end
    return parts


def _measured(spans: Sequence[Span], busy: Sequence[Span]) -> tuple[float, float]:
    """Return the length of the union of ``spans``, and of its part outside ``busy``, in microseconds."""
    merged = merge(spans)
    whole = length(merged)
    return whole / 1000, (whole - covered(merged, busy)) / 1000


def _meeting(match: Match, clocks: Clocks) -> Meeting:
    """Return which rank came last to a collective, and how long each other rank waited."""
    arrivals = _arrivals(match, clocks)
    last = int(np.argsort(arrivals, kind="stable")[-1])
    waits = {rank: arrivals[last] - arrival for rank, arrival in zip(match.ranks, arrivals, strict=True)}
    return Meeting(
        step=match.step,
        members=tuple(match.ranks),
        culprit=match.ranks[last],
        when_ns=clocks.correct(match.ranks[last], match.arrivals_ns[last]),
        waits_ns={rank: wait for rank, wait in waits.items() if wait > 0},
    )


def _exposed(match: Match, meeting: Meeting, victim: int) -> float:
    """Return the share of a victim's wait at one collective that its compute did not hide."""
    at = match.ranks.index(victim)
    begin, wait = match.arrivals_ns[at], meeting.waits_ns[victim]
    return _exposed_ns(_compute(match.records[at]), (begin, begin + wait)) / wait


def _exposed_ns(compute: Sequence[Span], waited: Span) -> int:
    """Return the length of the part of a wait that the rank's ``compute`` did not hide."""
    return waited[1] - waited[0] - covered([waited], merge(compute))


def _arrivals(match: Match, clocks: Clocks) -> list[int]:
    """Return the arrival of each rank, in nanoseconds on a clock that the ranks share."""
    if any(record.stream is None for record in match.records):
        return clocks.corrected(match.ranks, match.arrivals_ns)
    return [-inside for inside in match.inside_ns]


def _compute(record: CollectiveRecord) -> list[Span]:
    at = record.enqueue_unix_ns
    return [(at + round(begin * 1000), at + round(end * 1000)) for begin, end in record.compute_spans_us]
