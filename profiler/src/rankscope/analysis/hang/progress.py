"""Progress of each rank in each process group: the operations it has enqueued, and those that have not ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rankscope.analysis.hang.flight_records import COALESCED, Record, RecorderDump
from rankscope.analysis.hang.groups import Groups, HangGroup

_NEARLY: Final = 0.9
"""Fraction of its timeout after which an operation counts as timed out: the clocks of libraries are coarse."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Progress of one rank in one group."""

    collectives: dict[int, Record] = field(default_factory=dict)
    """Collectives by sequence number; for a coalesced batch, the record that ends it."""
    batches: dict[int, list[Record]] = field(default_factory=dict)
    """Collectives in coalesced batches, by the number of the batch, in the order they were enqueued."""
    unclosed: list[Record] = field(default_factory=list)
    """Collectives of the newest number, if the rank has enqueued nothing since: maybe of a batch that it has not closed."""
    transfers: list[Record] = field(default_factory=list)
    """Point-to-point operations that have not ended, in the order they were enqueued."""
    pending: dict[int, Record] = field(default_factory=dict)
    """Collectives that have not ended, by sequence number."""
    newest: int | None = None
    """Number of the last collective that the rank enqueued; ``None`` if the dumps do not show it."""
    overdue: Record | None = None
    """The last collective, if its timeout was over when an exception ended the rank: it failed, unless all ranks came to it."""

    def unfinished(self) -> list[Record]:
        """Return the operations that have not ended."""
        return [*self.pending.values(), *self.transfers, *([] if self.overdue is None else [self.overdue])]


class ProgressTable:
    """Progress of every rank with a dump, in every group that it is a member of."""

    def __init__(self, dumps: Mapping[int, Sequence[RecorderDump]], groups: Groups, crashed: Mapping[int, int | None]) -> None:
        """``crashed``: ranks whose dumps were written because of an exception, with its time (unix ns) if known."""
        self._crashed = crashed
        self.ranks = frozenset(dumps)
        """Ranks with a dump."""
        self.damaged = frozenset(rank for rank, parts in dumps.items() if any(dump.damaged for dump in parts))
        """Ranks that may have enqueued more than their dumps show, because records cannot be read."""
        self._table: dict[tuple[HangGroup, int], GroupProgress] = {}
        self._pending: dict[int, int] = {}
        records_of_groups: dict[HangGroup, list[tuple[int, RecorderDump, list[Record]]]] = {}
        for rank, parts in dumps.items():
            for dump in parts:
                for group, records in _by_group(rank, dump, groups).items():
                    records_of_groups.setdefault(group, []).append((rank, dump, records))
        for group, users in records_of_groups.items():
            self._follow(group, users, dumps)

    def _follow(
        self, group: HangGroup, users: list[tuple[int, RecorderDump, list[Record]]], dumps: Mapping[int, Sequence[RecorderDump]]
    ) -> None:
        furthest = max(record.sequence for _, _, records in users for record in records)
        mixed = any(record.is_p2p for _, _, records in users for record in records)
        for rank, dump, records in users:
            counted = [] if mixed else [_counted(group, [dump], furthest)]
            rank_progress = _group_progress(dump, records, counted)
            if rank in self._crashed:
                rank_progress = replace(rank_progress, overdue=_overdue(rank_progress, self._crashed[rank]))
            self._table[group, rank] = rank_progress
            self._pending[rank] = self._pending.get(rank, 0) + len(rank_progress.unfinished())
        for rank in group.ranks:
            if (group, rank) in self._table or rank not in dumps:
                continue
            own_dumps = [dump for dump in dumps[rank] if dump.backend in (group.backend, None)]
            newest = None if mixed else _counted(group, own_dumps, furthest)
            if newest is None and any(_never_used(group, dump) for dump in own_dumps):
                newest = 0
            self._table[group, rank] = GroupProgress(newest=newest)

    def of(self, group: HangGroup, rank: int) -> GroupProgress | None:
        """Return the progress of a rank; ``None`` if the rank has no dump, or if nothing was ever recorded in this group."""
        return self._table.get((group, rank))

    def pending_of(self, rank: int) -> int:
        """Return the number of operations of a rank that have not ended."""
        return self._pending.get(rank, 0)

    def all(self) -> list[tuple[HangGroup, int, GroupProgress]]:
        """Return each progress with its group and rank."""
        return [(group, rank, rank_progress) for (group, rank), rank_progress in self._table.items()]


def _by_group(rank: int, dump: RecorderDump, groups: Groups) -> dict[HangGroup, list[Record]]:
    by_group: dict[HangGroup, list[Record]] = {}
    for record in dump.records:
        by_group.setdefault(groups.of(rank, record.backend, record.group), []).append(record)
    return by_group


def _group_progress(dump: RecorderDump, records: list[Record], counted: Sequence[int | None]) -> GroupProgress:
    collectives = {record.sequence: record for record in records if not record.is_p2p}
    batches: dict[int, list[Record]] = {}
    for record in records:
        if not record.is_p2p and record.batch is not None:
            batches.setdefault(record.sequence, []).append(record)
    last = dump.records[-1]
    unclosed = [] if last.op == COALESCED else [record for record in records if _is_of_batch(record, last)]
    # NCCL also retires operations that timed out; gloo never reports completion.
    reports_end = records[0].backend == "nccl" or any(record.state == "completed" for record in dump.records)
    # Completed collectives may have no records: torch can be configured to dump only the others.
    recorded = collectives if collectives or not dump.gapless else [record.sequence for record in records]
    return GroupProgress(
        collectives=collectives,
        batches=batches,
        unclosed=unclosed,
        transfers=_transfers(records, reports_end=reports_end),
        pending={number: record for number, record in collectives.items() if not ended(record, reports_end=reports_end)},
        newest=max((number for number in (*recorded, *counted) if number is not None), default=None),
    )


def _is_of_batch(record: Record, last: Record) -> bool:
    """Return whether a collective may be of one batch with the last operation of the rank: members share their number."""
    return not (record.is_p2p or last.is_p2p) and (record.group, record.sequence) == (last.group, last.sequence)


def _overdue(rank_progress: GroupProgress, crashed_ns: int | None) -> Record | None:
    record = rank_progress.collectives.get(rank_progress.newest) if rank_progress.newest is not None else None
    if record is None or rank_progress.newest in rank_progress.pending or record.state == "completed" or record.backend == "nccl":
        return None
    if crashed_ns is None or record.created_ns is None or record.timeout_ms is None:
        return record
    return record if crashed_ns - record.created_ns >= record.timeout_ms * 1e6 * _NEARLY else None


def ended(record: Record, *, reports_end: bool) -> bool:
    """Return whether an operation is over. ``reports_end``: its backend does; else a retired operation is over."""
    return record.state == "completed" or (record.retired and not reports_end)


def _transfers(records: list[Record], *, reports_end: bool) -> list[Record]:
    """Return the sends and receives that are not over."""
    over: set[tuple[str, tuple[int, int]]] = set()
    waiting: list[Record] = []
    for record in reversed(records):
        if not record.is_p2p or record.peers is None:
            continue
        # Transfers from one rank to the same peer end in order.
        if (record.op, record.peers) in over or ended(record, reports_end=reports_end):
            over.add((record.op, record.peers))
        else:
            waiting.append(record)
    return waiting[::-1]


def _never_used(group: HangGroup, dump: RecorderDump) -> bool:
    """Return whether a rank has done nothing in a group without records in its dump."""
    return dump.from_the_beginning or (dump.all_progress and group.name not in dump.progress)


def _counted(group: HangGroup, own_dumps: Sequence[RecorderDump], furthest: int) -> int | None:
    """Return the number of a rank's last collective in a group by torch's own count; ``None`` if missing or implausible.

    Torch also counts point-to-point operations in this number, so it may exceed the last collective of every rank.
    """
    counts = [dump.progress[group.name] for dump in own_dumps if group.name in dump.progress]
    return max(0, counts[0]) if counts and group.backend == "nccl" and counts[0] <= furthest else None
