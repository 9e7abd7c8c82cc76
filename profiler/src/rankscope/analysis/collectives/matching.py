"""Matching of the records of different ranks that belong to the same collective, and of sends with their receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Literal

import msgspec

from rankscope.analysis.operations import Rule, operation
from rankscope.runs.records import CollectiveRecord

_REASONS: Final[dict[str, str]] = {"bytes": "bytes_differ", "dtype": "dtype_differs", "root": "root_differs"}


def disagreement(records: Iterable[CollectiveRecord]) -> str | None:
    """Return the reason why ``records`` cannot be one collective, or ``None``. A field that is ``None`` agrees with anything."""
    records = list(records)
    for name, reason in _REASONS.items():
        if len({getattr(record, name) for record in records} - {None}) > 1:
            return reason
    return None


_Side = dict[str, list[CollectiveRecord]]


class Pairs(msgspec.Struct, frozen=True):
    """Result of pairing sends with their receives."""

    pairs: list[tuple[int, CollectiveRecord, int, CollectiveRecord]] = msgspec.field(default_factory=list)
    """Tuples of sender, its record, receiver and its record."""
    unmatched: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of transfers that could not be paired, by reason."""
    unknown_peer: int = 0
    """Number of transfers whose records do not identify the other end."""


def pair_up(by_rank: Mapping[int, Iterable[CollectiveRecord]], known: set[int], *, world_size: int | None = None) -> Pairs:
    """Pair sends and receives of ``by_rank`` by (step, group, sender, receiver) and order.

    Messages between two ranks of a group do not overtake each other. Sequence numbers are not usable: they count each rank's own
    operations with all its peers. The record names the other end; in a group or world of two it can only be the other rank.
    ``known``: ranks that recorded anything. Where one end recorded more operations than the other, none of them is paired.
    """
    sides: dict[tuple[int, str, int, int], _Side] = {}
    without = 0
    for rank, records in by_rank.items():
        for record in sorted(records, key=lambda record: record.index):
            peer = _peer(rank, record, known, world_size)
            if peer is None or record.op not in ("send", "recv"):
                without += 1
                continue
            ends = (rank, peer) if record.op == "send" else (peer, rank)
            side = sides.setdefault((record.step, record.group, *ends), {"send": [], "recv": []})
            side[record.op].append(record)
    pairs: list[tuple[int, CollectiveRecord, int, CollectiveRecord]] = []
    unmatched: Counter[str] = Counter()
    for (_, _, sender, receiver), side in sides.items():
        sends, receives = side["send"], side["recv"]
        if not {sender, receiver} <= known:
            unmatched["rank_missing"] += max(len(sends), len(receives))
        elif len(sends) != len(receives):
            unmatched["order_shifted" if sends and receives else "incomplete"] += max(len(sends), len(receives))
        else:
            for send, receive in zip(sends, receives, strict=True):
                differs = disagreement((send, receive))
                if differs is None:
                    pairs.append((sender, send, receiver, receive))
                else:
                    unmatched[differs] += 1
    # Every transfer has two ends, so two records.
    return Pairs(pairs, unmatched, (without + 1) // 2)


def _peer(rank: int, record: CollectiveRecord, known: set[int], world_size: int | None) -> int | None:
    if record.peer is not None:
        return record.peer if record.peer != rank else None
    members = set(record.group_ranks or ()) or (known if world_size == 2 else set())
    others = members - {rank}
    return others.pop() if len(members) == 2 and len(others) == 1 else None


class Match(msgspec.Struct, frozen=True, dict=True):
    """One collective on all its ranks; ``records[i]`` is the record of ``ranks[i]``. In a pair the sender comes first."""

    step: int
    group: str
    op: str
    ranks: list[int]
    records: list[CollectiveRecord]
    rule: Rule = "everybody"
    root: int | None = None

    @cached_property
    def arrivals_ns(self) -> list[int]:
        """Arrival of each rank, on its own clock."""
        return list(map(arrival_ns, self.records))

    @cached_property
    def inside_ns(self) -> list[int]:
        """Duration of the collective on each rank from its arrival, waiting included."""
        return [record.end_unix_ns - at for record, at in zip(self.records, self.arrivals_ns, strict=True)]


class Matching(msgspec.Struct, frozen=True):
    """Result of matching the collectives of all ranks. Counts are of instances, not of records."""

    matches: list[Match] = msgspec.field(default_factory=list)
    """Matched collectives in which all ranks wait for the last one."""
    unmatched: int = 0
    excluded: dict[str, int] = msgspec.field(default_factory=dict)
    method: Literal["sequence", "order"] | None = None
    directed: list[Match] = msgspec.field(default_factory=list)
    """Matched instances in which only some ranks wait: pairs, and operations with a known root."""
    unmatched_by: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of unmatched instances by reason; the values add up to ``unmatched``."""
    partial: list[Match] = msgspec.field(default_factory=list)
    """Unmatched instances whose recorded ranks may well be in one collective, with other ranks of it missing."""


def arrival_ns(record: CollectiveRecord) -> int:
    """Return the arrival of a rank: the start of its kernel on a device, the calling thread's enqueue on the CPU."""
    return record.enqueue_unix_ns if record.stream is None else record.start_unix_ns


_RANK_MISSING: Final = "rank_missing"
"""Reason: a member of the group is not recorded, or the members are not known."""

_Cell = dict[int, list[CollectiveRecord]]


def match_collectives(by_rank: Mapping[int, Iterable[CollectiveRecord]], *, world_size: int | None = None) -> Matching:
    """Match by (group, sequence number) where every record of the group has one, else by order within (step, group).

    An instance counts as matched when each rank of its group has it with the same operation, size and data type. Groups whose
    ranks are not recorded are assumed to span the world. With fewer recorded ranks than ``world_size``, nothing in such groups
    can be matched, because a missing rank may have arrived last. Sends and receives are matched by ``pair_up``.
    """
    cells: dict[tuple[int, str, int | None], _Cell] = {}
    groups = _Members()
    pairs: dict[int, list[CollectiveRecord]] = {}
    for rank, records in by_rank.items():
        for record in records:
            if record.p2p:
                pairs.setdefault(rank, []).append(record)
                continue
            members = groups.number(record.group_ranks) if record.group_ranks else None
            cells.setdefault((record.step, record.group, members), {}).setdefault(rank, []).append(record)
    known = set(by_rank)
    found = _Found()
    named: dict[tuple[int, str], set[int]] = {}
    users: dict[str, set[int]] = {}
    for (step, group, members), held in cells.items():
        named.setdefault((step, group), set()).update(held)
        if members is None:
            users.setdefault(group, set()).update(held)
    for (step, group, members), held in cells.items():
        expected = set(groups.found[members]) if members is not None else _expected(users[group], known, world_size)
        _match_cell(held, expected, known, named[step, group], found)
    directed = list(found.directed)
    paired = pair_up(pairs, known, world_size=world_size)
    for sender, send, receiver, recv in paired.pairs:
        directed.append(Match(send.step, send.group, "send", [sender, receiver], [send, recv], "pair"))
    unmatched = found.unmatched + paired.unmatched
    excluded = found.excluded + Counter({"p2p": paired.unknown_peer} if paired.unknown_peer else {})
    method: Literal["sequence", "order"] | None = None
    if found.matches:
        method = "sequence" if found.sequenced >= len(found.matches) - found.sequenced else "order"
    return Matching(
        found.matches,
        unmatched.total(),
        dict(sorted(excluded.items())),
        method,
        directed=directed,
        unmatched_by=dict(sorted(unmatched.items())),
        partial=found.partial,
    )


class _Members:
    """Numbers for members of groups: hashing and comparing lists of thousands of ranks for each record is slow."""

    def __init__(self) -> None:
        self.found: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._lists: dict[int, int] = {}
        """Number by ``id`` of a list. Records keep their lists, so no id is used again."""

    def number(self, ranks: list[int]) -> int:
        """Return the number of a group with these members."""
        known = self._lists.get(id(ranks))
        if known is None:
            members = tuple(ranks)
            known = self._lists[id(ranks)] = self._numbers.setdefault(members, len(self.found))
            if known == len(self.found):
                self.found.append(members)
        return known


class _Found(msgspec.Struct):
    matches: list[Match] = msgspec.field(default_factory=list)
    directed: list[Match] = msgspec.field(default_factory=list)
    partial: list[Match] = msgspec.field(default_factory=list)
    unmatched: Counter[str] = msgspec.field(default_factory=Counter)
    excluded: Counter[str] = msgspec.field(default_factory=Counter)
    sequenced: int = 0


def _match_cell(held: _Cell, expected: set[int] | None, known: set[int], named: set[int], found: _Found) -> None:
    """Match the instances of one group in one step.

    ``named``: ranks that have a group of this name in the step, with these members or others.
    """
    by_sequence = all(record.sequence is not None for row in held.values() for record in row)
    keyed = {rank: _keyed(row, by_sequence=by_sequence) for rank, row in held.items()}
    # A rank that lacks a part of the step has a shifted order, so order is no evidence.
    shifted = not by_sequence and len({len(row) for row in held.values()}) > 1
    for key in sorted({key for row in keyed.values() for key in row}):
        instance = {rank: row[key] for rank, row in keyed.items() if key in row}
        ranks = sorted(instance)
        records = [instance[rank] for rank in ranks]
        reason = _exclusion(records)
        if reason is not None:
            found.excluded[reason] += 1
            continue
        rule = operation(records[0].op).rule or "everybody"
        match = Match(records[0].step, records[0].group, records[0].op, ranks, records, rule, records[0].root)
        obstacle = _obstacle(match, expected, known, named - held.keys(), shifted=shifted)
        if obstacle is not None:
            found.unmatched[obstacle] += 1
            if rule == "everybody" and not shifted and _disagreement(records) is None:
                found.partial.append(match)
        elif len(ranks) > 1 and rule == "everybody":
            found.matches.append(match)
            found.sequenced += by_sequence
        elif len(ranks) > 1:
            found.directed.append(match)


def _exclusion(records: list[CollectiveRecord]) -> str | None:
    """Return the reason why an instance does not show which rank waits for which, or ``None``."""
    asked = dict.fromkeys((record.op, record.root is None) for record in records)
    for op, rootless in asked:
        row = operation(op)
        if row.rule in (None, "pair") or (row.excluded and rootless):
            return row.excluded
    if all(op == "all_to_all" for op, _ in asked) and len({record.bytes for record in records} - {None}) > 1:
        return "uneven_all_to_all"
    return None


def _obstacle(match: Match, expected: set[int] | None, known: set[int], elsewhere: set[int], *, shifted: bool) -> str | None:
    """Return the reason why an instance is not matched, or ``None``.

    ``elsewhere``: ranks that recorded a group of the same name with other members.
    """
    if expected is None or not expected <= known:
        return _RANK_MISSING
    if shifted:
        return "order_shifted"
    absent = expected.difference(match.ranks)
    if absent & elsewhere:
        return "ranks_differ"
    if absent or set(match.ranks) != expected:
        return "incomplete"
    return _disagreement(match.records)


def _disagreement(records: list[CollectiveRecord]) -> str | None:
    if len(records) < 2:
        return None
    return "operation_differs" if len({record.op for record in records}) > 1 else disagreement(records)


def _expected(users: set[int], known: set[int], world_size: int | None) -> set[int] | None:
    """Return the ranks of a group whose members are not recorded: ``users``, that is those that use it in any step."""
    if world_size is not None and len(known) < world_size:
        return None
    return users if len(users) > 1 else None


def _keyed(records: list[CollectiveRecord], *, by_sequence: bool) -> dict[int, CollectiveRecord]:
    if by_sequence:
        return {record.sequence: record for record in records if record.sequence is not None}
    return dict(enumerate(sorted(records, key=lambda record: record.index)))
