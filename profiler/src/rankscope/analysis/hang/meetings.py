"""Collectives and transfers that have not ended: who is there, who has not come, who is held up before.

A meeting is one collective, or one send with its receive. A rank may have enqueued many that have not ended; it waits in the
oldest, for what it enqueued later comes after it on its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.hang.groups import Group
from rankscope.analysis.hang.progress import Lines
from rankscope.analysis.hang.records import Record

YOUNG_NS: Final = 5_000_000_000
"""Who has been waited for for less may be on its way: ranks of a job that goes on are not dumped at the same moment."""

MOST_PENDING: Final = 64
"""Operations of a rank in a group that are looked at: those behind them wait for the same."""

SYMMETRIC: Final = frozenset(
    {
        "all_reduce",
        "all_reduce_barrier",
        "allreduce_coalesced",
        "all_gather",
        "_all_gather_base",
        "all_gather_single",
        "all_gather_into_tensor_coalesced",
        "allgather_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
    }
)
"""No rank can end one of these before all have begun it. (A broadcast's root can.)"""


@dataclass(slots=True, eq=False)
class Meeting:
    """Ranks that must come together."""

    group: Group
    sequence: int
    expected: frozenset[int]
    """Ranks that take part."""
    records: dict[int, Record] = field(default_factory=dict)
    """Of those that came, where it has not ended."""
    ended: set[int] = field(default_factory=set)
    """Ranks where it has."""
    absent: set[int] = field(default_factory=set)
    """Ranks that have not enqueued it."""
    untold: set[int] = field(default_factory=set)
    """Ranks of which the dumps do not tell."""
    transfer: bool = False
    """Point-to-point."""

    @property
    def sample(self) -> Record:
        """One of its records: the first to come."""
        return min(self.records.values(), key=lambda record: (record.created_ns or 0, record.record_id))


@dataclass(frozen=True, slots=True)
class Moments:
    """When each rank's dump was taken, unix nanoseconds, as far as that is known."""

    taken_ns: Mapping[int, int]

    def waited_ns(self, rank: int, record: Record) -> int | None:
        """How long a rank had waited when its dump was taken."""
        taken = self.taken_ns.get(rank)
        return None if taken is None or record.created_ns is None else max(0, taken - record.created_ns)

    def is_young(self, meeting: Meeting) -> bool:
        """Whether all who are there came a moment before they were dumped."""
        waited = [self.waited_ns(rank, record) for rank, record in meeting.records.items()]
        return all(one is not None and one < YOUNG_NS for one in waited)

    def may_come(self, rank: int, meeting: Meeting) -> bool:
        """Whether a rank that is not there was dumped before it was late."""
        taken = self.taken_ns.get(rank)
        came = [record.created_ns for record in meeting.records.values() if record.created_ns is not None]
        return taken is not None and bool(came) and taken - min(came) < YOUNG_NS


def find_meetings(lines: Lines) -> list[Meeting]:
    """All that have not ended somewhere: of each rank and group the oldest."""
    wanted: dict[tuple[Group, int], None] = {}
    for group, _, line in lines.all():
        wanted.update(dict.fromkeys((group, number) for number in sorted(line.pending)[:MOST_PENDING]))
        if line.overdue is not None:
            wanted[group, line.overdue.sequence] = None
    collectives = [_collective(lines, group, number) for group, number in wanted]
    return [meeting for meeting in collectives if meeting.records] + _transfers(lines)


def _collective(lines: Lines, group: Group, number: int) -> Meeting:
    meeting = Meeting(group, number, group.members)
    overdue: dict[int, Record] = {}
    for rank in group.members & lines.ranks:
        line = lines.of(group, rank)
        if line is None or line.newest is None:
            continue
        if (record := line.pending.get(number)) is not None:
            meeting.records[rank] = record
        elif line.overdue is not None and line.overdue.sequence == number:
            overdue[rank] = line.overdue
        else:
            (meeting.ended if line.newest >= number else meeting.absent).add(rank)
    meeting.untold = set(group.members - meeting.records.keys() - meeting.ended - meeting.absent - overdue.keys())
    if meeting.absent or meeting.untold:
        meeting.records.update(overdue)
    else:
        meeting.ended.update(overdue)
    return meeting


def _transfers(lines: Lines) -> list[Meeting]:
    """Sends and receives that wait for the other side; where both came, one meeting."""
    waiting: dict[tuple[Group, str, int, int], list[Record]] = {}
    for group, rank, line in lines.all():
        for record in line.transfers:
            peer = _peer(group, record)
            if peer is not None and peer != rank:
                waiting.setdefault((group, record.op, rank, peer), []).append(record)
    found: list[Meeting] = []
    for (group, op, rank, peer), records in waiting.items():
        answers = waiting.get((group, "recv" if op == "send" else "send", peer, rank), [])
        for place, record in enumerate(records[:MOST_PENDING]):
            meeting = Meeting(group, record.p2p_sequence, frozenset({rank, peer}), {rank: record}, transfer=True)
            if place >= len(answers):
                (meeting.untold if lines.of(group, peer) is None else meeting.absent).add(peer)
            elif op == "send":
                meeting.records[peer] = answers[place]
            else:
                continue  # the meeting of its send
            found.append(meeting)
    return found


def _peer(group: Group, record: Record) -> int | None:
    if record.peers is None:
        return None
    place = record.peers[record.op == "send"]
    # Where the group's ranks are not known, nor is whom the number means.
    return group.ranks[place] if group.known and place < len(group.ranks) else None
