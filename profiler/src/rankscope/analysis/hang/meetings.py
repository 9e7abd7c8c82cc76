"""Collectives and transfers that have not ended: the ranks that came, those that did not, and those held up earlier.

A meeting is one collective, or one send with its receive. A rank may have enqueued many operations that have not ended. It waits
in the oldest, because its device runs them in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.hang.flight_records import Record, RecorderDump
from rankscope.analysis.hang.groups import HangGroup
from rankscope.analysis.hang.progress import GroupProgress, ProgressTable

YOUNG_NS: Final = 5_000_000_000
"""A rank awaited for less than this may be on its way: the ranks of a running job are not dumped at the same moment."""

CLOCKS_NS: Final = 60_000_000_000
"""Largest difference between the clocks of a host and of its file server that is plausible."""

MOST_PENDING: Final = 64
"""Maximum number of pending operations examined per rank and group; later ones wait for the same."""


@dataclass(slots=True, eq=False)
class Meeting:
    """A collective or transfer at which several ranks must arrive."""

    group: HangGroup
    sequence: int
    expected: frozenset[int]
    """Ranks that take part."""
    records: dict[int, Record] = field(default_factory=dict)
    """Records of the ranks that came and on which it has not ended."""
    ended: set[int] = field(default_factory=set)
    """Ranks on which it has ended."""
    absent: set[int] = field(default_factory=set)
    """Ranks that have not enqueued it."""
    unshown: set[int] = field(default_factory=set)
    """Ranks whose arrival the dumps do not show."""
    transfer: bool = False
    """True for a point-to-point operation."""
    paired: bool = False
    """True if both ranks of a transfer wait in equally many of its direction: then none has ended on one side only."""

    @property
    def sample(self) -> Record:
        """Record of the first rank to come."""
        return min(self.records.values(), key=lambda record: (record.created_ns or 0, record.record_id))


@dataclass(frozen=True, slots=True)
class DumpTimes:
    """Times of each rank in unix nanoseconds, where known."""

    taken_ns: Mapping[int, int]
    """Time of its dump."""
    completed_ns: Mapping[int, int]
    """Time at which its last operation in any group ended, by its own clock."""

    def waited_ns(self, rank: int, record: Record) -> int | None:
        """Return the time from the enqueuing of an operation to the rank's dump, in nanoseconds; ``None`` if unknown."""
        dumped_ns = self.taken_ns.get(rank)
        return None if dumped_ns is None or record.created_ns is None else max(0, dumped_ns - record.created_ns)

    def stood_ns(self, rank: int, record: Record) -> int | None:
        """Return for how long nothing had ended on a rank that waits in ``record``, in nanoseconds; ``None`` if unknown.

        A rank on which operations end until its dump does not hang, however far ahead its host enqueues.
        """
        dumped_ns = self.taken_ns.get(rank)
        begun = [time for time in (record.created_ns, self.completed_ns.get(rank)) if time is not None]
        return None if dumped_ns is None or not begun else max(0, dumped_ns - max(begun))

    def is_overdue(self, rank: int, record: Record) -> bool:
        """Return whether an operation was older than its timeout when the dump was taken."""
        waited = self.waited_ns(rank, record)
        return waited is not None and record.timeout_ms is not None and waited >= record.timeout_ms * 10**6

    def is_recent(self, rank: int, record: Record) -> bool:
        """Return whether a rank may have waited in ``record`` for a moment only."""
        stood = self.stood_ns(rank, record)
        return stood is not None and stood < YOUNG_NS and not self.is_overdue(rank, record)

    def is_young(self, meeting: Meeting) -> bool:
        """Return whether a meeting may end yet: the last rank has just come or, if ranks are missing, all that came have."""
        recent = [self.is_recent(rank, record) for rank, record in meeting.records.items()]
        return all(recent) if meeting.absent or meeting.unshown else any(recent)

    def is_certain(self, meeting: Meeting) -> bool:
        """Return whether a rank waits for longer than clocks may differ: only then the meeting cannot be one of a running job."""
        return any(
            self.is_overdue(rank, record) or ((stood := self.stood_ns(rank, record)) is not None and stood >= CLOCKS_NS)
            for rank, record in meeting.records.items()
        )

    def may_come(self, rank: int, meeting: Meeting) -> bool:
        """Return whether an absent rank was dumped less than ``YOUNG_NS`` after the first rank came: it may still arrive.

        Not if a timeout is over, or nothing has ended on it for longer than clocks of hosts may differ.
        """
        dumped_ns = self.taken_ns.get(rank)
        came = [record.created_ns for record in meeting.records.values() if record.created_ns is not None]
        if dumped_ns is None or not came or any(self.is_overdue(waiting, record) for waiting, record in meeting.records.items()):
            return False
        return dumped_ns - min(came) < YOUNG_NS and dumped_ns - self.completed_ns.get(rank, dumped_ns) < CLOCKS_NS


def dump_times_of(dumps: Mapping[int, Sequence[RecorderDump]], taken_ns: Mapping[int, int]) -> DumpTimes:
    """Return the times of ranks, from their dumps and the times at which these were taken."""
    completed = {
        rank: max(times)
        for rank, parts in dumps.items()
        if (times := [dump.completed_ns for dump in parts if dump.completed_ns is not None])
    }
    return DumpTimes(taken_ns, completed)


def find_meetings(progress: ProgressTable) -> list[Meeting]:
    """Return the meetings that have not ended on some rank, up to the ``MOST_PENDING`` oldest per rank and group."""
    wanted: dict[tuple[HangGroup, int], None] = {}
    for group, _, rank_progress in progress.all():
        wanted.update(dict.fromkeys((group, number) for number in sorted(rank_progress.pending)[:MOST_PENDING]))
        if rank_progress.overdue is not None:
            wanted[group, rank_progress.overdue.sequence] = None
    collectives = [_collective(progress, group, number) for group, number in wanted]
    return [meeting for meeting in collectives if meeting.records] + _transfers(progress)


def _collective(progress: ProgressTable, group: HangGroup, number: int) -> Meeting:
    meeting = Meeting(group, number, group.members)
    overdue: dict[int, Record] = {}
    present = {
        rank: rank_progress for rank in group.members & progress.ranks if (rank_progress := progress.of(group, rank)) is not None
    }
    batch = max((rank_progress.batches.get(number, []) for rank_progress in present.values()), key=len, default=[])
    for rank, rank_progress in present.items():
        if rank_progress.newest is None:
            continue
        if _is_within(rank_progress, number, batch):
            meeting.absent.add(rank)
        elif (record := rank_progress.pending.get(number)) is not None:
            meeting.records[rank] = record
        elif rank_progress.overdue is not None and rank_progress.overdue.sequence == number:
            overdue[rank] = rank_progress.overdue
        elif rank_progress.newest >= number:
            meeting.ended.add(rank)
        elif rank not in progress.damaged:
            meeting.absent.add(rank)
    meeting.unshown = set(group.members - meeting.records.keys() - meeting.ended - meeting.absent - overdue.keys())
    if meeting.absent or meeting.unshown:
        meeting.records.update(overdue)
    else:
        meeting.ended.update(overdue)
    return meeting


def _is_within(rank_progress: GroupProgress, number: int, batch: list[Record]) -> bool:
    """Return whether a rank has enqueued a part of a batch that others have closed: it stopped there, so it has not come."""
    begun = [record.op for record in rank_progress.unclosed if record.sequence == number]
    return bool(begun) and begun == [record.op for record in batch[: len(begun)]]


def _transfers(progress: ProgressTable) -> list[Meeting]:
    """Return the sends and receives that have not ended. If both sides came, they are one meeting."""
    waiting: dict[tuple[HangGroup, str, int, int], list[Record]] = {}
    for group, rank, rank_progress in progress.all():
        for record in rank_progress.transfers:
            peer = _peer(group, record)
            if peer is not None and peer != rank:
                waiting.setdefault((group, record.op, rank, peer), []).append(record)
    meetings: list[Meeting] = []
    for (group, op, rank, peer), records in waiting.items():
        answers = waiting.get((group, "recv" if op == "send" else "send", peer, rank), [])
        for place, record in enumerate(records[:MOST_PENDING]):
            meeting = Meeting(group, record.p2p_sequence, frozenset({rank, peer}), {rank: record}, transfer=True)
            if place >= len(answers):
                (meeting.unshown if progress.of(group, peer) is None or peer in progress.damaged else meeting.absent).add(peer)
            elif op == "send":
                meeting.records[peer] = answers[place]
                meeting.paired = len(records) == len(answers)
            else:
                continue  # already in the meeting of its send
            meetings.append(meeting)
    return meetings


def _peer(group: HangGroup, record: Record) -> int | None:
    if record.peers is None:
        return None
    place = record.peers[record.op == "send"]
    # Without the group's ranks, a rank of the group cannot be mapped to a global rank.
    return group.ranks[place] if group.ranks_known and place < len(group.ranks) else None
