"""Which collectives of different ranks are the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.runs.records import CollectiveRecord

EXCLUDED_OPERATIONS: Final[dict[str, str]] = {
    # operation -> reason. In these the last to arrive does not make all others wait, so waiting cannot be read from durations.
    "send": "p2p",
    "recv": "p2p",
    "send_recv": "p2p",
    "batch_isend_irecv": "p2p",
    "broadcast": "broadcast",
    "reduce": "rooted",
    "gather": "rooted",
    "scatter": "rooted",
    "all_to_allv": "uneven_all_to_all",
    "dispatch": "expert_parallel",
    "combine": "expert_parallel",
    "notify": "expert_parallel",
}


@dataclass(frozen=True, slots=True)
class Match:
    """One collective on all its ranks: ``records[i]`` is that of ``ranks[i]``."""

    step: int
    group: str
    op: str
    ranks: list[int]
    records: list[CollectiveRecord]


@dataclass(frozen=True, slots=True)
class Matching:
    """All ranks' collectives put together. Counts are of instances, not of records."""

    matches: list[Match] = field(default_factory=list)
    unmatched: int = 0
    excluded: dict[str, int] = field(default_factory=dict)
    method: Literal["sequence", "order"] | None = None


def arrival_ns(record: CollectiveRecord) -> int:
    """When a rank was there: its kernel's start on a device, the calling thread's enqueue on the CPU."""
    return record.enqueue_unix_ns if record.stream is None else record.start_unix_ns


def exclusion(record: CollectiveRecord) -> str | None:
    """Why a collective says nothing about waiting, or ``None``."""
    return "p2p" if record.p2p else EXCLUDED_OPERATIONS.get(record.op)


def match_collectives(by_rank: Mapping[int, Iterable[CollectiveRecord]], *, world_size: int | None = None) -> Matching:
    """Match by (group, sequence number) where every rank of the group has them, else by order within (step, group).

    An instance counts as matched when each rank of its group has it with the same operation and size. Groups whose ranks are not
    recorded are taken to span the world; with fewer ranks than ``world_size`` at hand, nothing in them can be matched, because
    the last to arrive may be one that is missing.
    """
    cells: dict[tuple[int, str, tuple[int, ...] | None], dict[int, list[CollectiveRecord]]] = {}
    for rank, records in by_rank.items():
        for record in records:
            members = tuple(record.group_ranks) if record.group_ranks else None
            cells.setdefault((record.step, record.group, members), {}).setdefault(rank, []).append(record)
    matches: list[Match] = []
    excluded: Counter[str] = Counter()
    unmatched = 0
    sequenced = ordered = 0
    for (_, _, ranks_of_group), held in cells.items():
        expected = _expected(ranks_of_group, held, set(by_rank), world_size)
        by_sequence = all(record.sequence is not None and not record.p2p for row in held.values() for record in row)
        keyed = {rank: _keyed(row, by_sequence=by_sequence) for rank, row in held.items()}
        # A rank that lacks a part of the step has its order shifted: then order says nothing.
        shifted = not by_sequence and len({len(row) for row in held.values()}) > 1
        for key in sorted({key for row in keyed.values() for key in row}):
            instance = {rank: row[key] for rank, row in keyed.items() if key in row}
            reason = next((said for record in instance.values() if (said := exclusion(record))), None)
            if reason is None and _is_uneven(instance):
                reason = "uneven_all_to_all"
            if reason is not None:
                excluded[reason] += 1
            elif shifted or expected is None or set(instance) != expected or not _agree(instance):
                unmatched += 1
            elif len(instance) > 1:
                ranks = sorted(instance)
                first = instance[ranks[0]]
                matches.append(Match(first.step, first.group, first.op, ranks, [instance[rank] for rank in ranks]))
                sequenced, ordered = sequenced + by_sequence, ordered + (not by_sequence)
    method: Literal["sequence", "order"] | None = ("sequence" if sequenced >= ordered else "order") if matches else None
    return Matching(matches, unmatched, dict(sorted(excluded.items())), method)


def _expected(
    members: tuple[int, ...] | None, held: Mapping[int, object], known: set[int], world_size: int | None
) -> set[int] | None:
    if members is not None:
        return set(members)
    if world_size is not None and len(known) < world_size:
        return None
    return set(held) if len(held) > 1 else None


def _keyed(records: list[CollectiveRecord], *, by_sequence: bool) -> dict[int, CollectiveRecord]:
    if by_sequence:
        return {record.sequence: record for record in records if record.sequence is not None}
    return dict(enumerate(sorted(records, key=lambda record: record.index)))


def _agree(instance: Mapping[int, CollectiveRecord]) -> bool:
    operations = {record.op for record in instance.values()}
    sizes = {record.bytes for record in instance.values()} - {None}
    return len(operations) == 1 and len(sizes) <= 1


def _is_uneven(instance: Mapping[int, CollectiveRecord]) -> bool:
    sizes = {record.bytes for record in instance.values()} - {None}
    return len(sizes) > 1 and all(record.op == "all_to_all" for record in instance.values())
