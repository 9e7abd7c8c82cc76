"""Follow the waits between ranks, from meetings to the ranks that all others wait for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.analysis.hang.groups import HangGroup
from rankscope.analysis.hang.meetings import DumpTimes, Meeting
from rankscope.analysis.operations import operation, operation_name

Why = Literal["not_arrived", "held_up", "lost_device", "no_dump", "untold"]

LOST: Final = 2
"""Minimum number of collectives of one group that ended on other ranks but not on this one, for its device to count as lost.

A single one may have ended while the dumps were taken.
"""


@dataclass(slots=True)
class Blockers:
    """Waits of every rank."""

    oldest: dict[int, Meeting] = field(default_factory=dict)
    """Per rank: the meeting of its oldest operation that has not ended."""
    blocks: dict[Meeting, dict[int, Why]] = field(default_factory=dict)
    """Per meeting: the ranks that keep it from ending, and why."""
    lost: dict[int, list[Meeting]] = field(default_factory=dict)
    """Ranks whose device is lost, with the meetings that ended on other ranks only."""
    late: dict[int, list[Meeting]] = field(default_factory=dict)
    """Ranks that are awaited but wait for nothing themselves, with the meetings that await them."""
    silent: dict[int, None] = field(default_factory=dict)
    """Ranks without a dump that are awaited."""
    young: int = 0
    """Number of meetings in which no rank has waited for long."""

    def stuck(self) -> list[Meeting]:
        """Return the meetings to which all ranks came and that still do not end."""
        return [meeting for meeting in dict.fromkeys(self.oldest.values()) if not self.blocks[meeting]]

    def deadlock(self) -> list[int]:
        """Return the ranks that wait for each other and for no other rank, ascending; empty without such a circle."""
        waiting = dict(self.oldest)
        while True:
            meetings = set(waiting.values())
            closed = {meeting for meeting in meetings if self.blocks[meeting] and self.blocks[meeting].keys() <= waiting.keys()}
            awaited = {rank for meeting in closed for rank, why in self.blocks[meeting].items() if why != "untold"}
            unresolved = {rank: meeting for rank, meeting in waiting.items() if meeting in closed and rank in awaited}
            if len(unresolved) == len(waiting):
                return sorted(unresolved)
            waiting = unresolved

    def chain_to(self, rank: int) -> list[int]:
        """Return a chain of ranks, each waiting for the next, from the furthest one to ``rank``."""
        victims: dict[int, list[int]] = {}
        for waiting, meeting in sorted(self.oldest.items()):
            for blocker in self.blocks[meeting]:
                victims.setdefault(blocker, []).append(waiting)
        before: dict[int, int | None] = {rank: None}
        queue = [rank]
        for waiter in queue:
            for victim in victims.get(waiter, []):
                if victim not in before:
                    before[victim] = waiter
                    queue.append(victim)
        chain: list[int] = []
        place: int | None = queue[-1]
        while place is not None:
            chain.append(place)
            place = before[place]
        return chain


def find_blockers(
    meetings: Sequence[Meeting], times: DumpTimes, dumped: Container[int], mismatched: Container[Meeting] = ()
) -> Blockers:
    """Follow the wait of every rank's oldest operation.

    ``dumped``: ranks with a dump. ``mismatched``: collectives that may have ended on some ranks only because of their sizes.
    """
    lost = _lost([meeting for meeting in meetings if meeting not in mismatched], times)
    old = [meeting for meeting in meetings if not times.is_young(meeting)]
    blockers = Blockers(oldest=_oldest(old, lost), lost=lost, young=len(meetings) - len(old))
    moved_ranks = _wait_within_batches(old, blockers)
    for meeting in dict.fromkeys(blockers.oldest.values()):
        blockers.blocks[meeting] = _blocked_by(meeting, blockers, dumped, moved_ranks)
    for meeting in old:
        for rank in meeting.absent - blockers.oldest.keys() - lost.keys():
            if not times.may_come(rank, meeting):
                blockers.late.setdefault(rank, []).append(meeting)
        blockers.silent.update(dict.fromkeys(rank for rank in meeting.unshown if rank not in dumped))
    return blockers


def _oldest(meetings: Sequence[Meeting], lost: Container[int]) -> dict[int, Meeting]:
    """Return the meeting in which each rank waits. Lost ranks are left out: their records show ended operations as pending."""
    oldest: dict[int, tuple[int, int, Meeting]] = {}
    for meeting in meetings:
        for rank, record in meeting.records.items():
            place = (record.created_ns or 0, record.record_id)
            if rank not in lost and (rank not in oldest or place < oldest[rank][:2]):
                oldest[rank] = (*place, meeting)
    return {rank: meeting for rank, (_, _, meeting) in oldest.items()}


def _wait_within_batches(meetings: Sequence[Meeting], blockers: Blockers) -> set[int]:
    """Have each rank in a batch wait in the transfer that others keep from ending, and return these ranks.

    The transfers of a batch run together and have no order: one of them ends without the others, and the batch with the last.
    """
    of_batch: dict[tuple[int, int], list[Meeting]] = {}
    for meeting in meetings:
        for rank, record in meeting.records.items():
            if record.batch is not None:
                of_batch.setdefault((rank, record.batch), []).append(meeting)
    moved_ranks: set[int] = set()
    queue = [
        meeting
        for meetings_of_rank in of_batch.values()
        for meeting in meetings_of_rank
        if meeting.absent
        or meeting.unshown
        or not all(_is_within_batch(blockers.oldest.get(rank), meeting, rank) for rank in meeting.records)
    ]
    for meeting in queue:
        for rank, record in meeting.records.items():
            if (
                rank not in moved_ranks
                and record.batch is not None
                and _is_within_batch(blockers.oldest.get(rank), meeting, rank)
            ):
                moved_ranks.add(rank)
                blockers.oldest[rank] = meeting
                queue += of_batch[rank, record.batch]
    return moved_ranks


def _is_within_batch(oldest: Meeting | None, meeting: Meeting, rank: int) -> bool:
    """Return whether a rank waits in a meeting itself, or in another transfer of the same batch."""
    if oldest is None or oldest is meeting:
        return oldest is meeting
    batch = meeting.records[rank].batch
    return batch is not None and oldest.records[rank].batch == batch


def _blocked_by(meeting: Meeting, blockers: Blockers, dumped: Container[int], moved_ranks: Container[int]) -> dict[int, Why]:
    blocked: dict[int, Why] = {}
    for rank in sorted(meeting.records.keys() | meeting.absent | meeting.unshown):
        if rank in blockers.lost:
            blocked[rank] = "lost_device"
        elif rank in meeting.absent:
            blocked[rank] = "not_arrived"
        elif rank in meeting.unshown:
            blocked[rank] = "untold" if rank in dumped else "no_dump"
        elif (
            rank in blockers.oldest
            and blockers.oldest[rank] is not meeting
            and (rank in moved_ranks or not _is_within_batch(blockers.oldest[rank], meeting, rank))
        ):
            blocked[rank] = "held_up"
    return blocked


def _lost(meetings: Sequence[Meeting], times: DumpTimes) -> dict[int, list[Meeting]]:
    """Return the ranks whose device, or its watchdog, no longer answers, with the collectives whose end they never saw."""
    unseen: dict[tuple[HangGroup, int], list[Meeting]] = {}
    for meeting in meetings:
        if meeting.transfer or not meeting.ended or not operation(operation_name(meeting.sample.op)).is_symmetric:
            continue
        for rank, record in meeting.records.items():
            # Ranks of a running job are not dumped at the same moment: a recent collective may end after this rank's dump.
            if not times.is_recent(rank, record):
                unseen.setdefault((meeting.group, rank), []).append(meeting)
    lost: dict[int, list[Meeting]] = {}
    for (_, rank), missed in unseen.items():
        if len(missed) >= LOST:
            lost.setdefault(rank, []).extend(missed)
    return lost
