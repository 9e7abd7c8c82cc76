"""Matching of the records of different ranks that belong to the same collective, and of sends with their receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, Literal

import msgspec
import numpy as np

from rankscope.analysis.collectives.arrivals import (
    EVERYBODY,
    NO_ARRIVALS,
    Arrivals,
    CollectiveColumns,
    Flags,
    Numbers,
    arrivals_at,
    combined,
    numbered,
    records_of,
)
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.operations import operation
from rankscope.analysis.trace.intervals import by_key
from rankscope.runs.records import CollectiveRecord


class Matching(msgspec.Struct, frozen=True):
    """Result of matching the collectives of all ranks. Counts are of instances, not of records."""

    matches: Arrivals = NO_ARRIVALS
    """Matched collectives in which all ranks wait for the last one."""
    unmatched: int = 0
    excluded: dict[str, int] = msgspec.field(default_factory=dict)
    method: Literal["sequence", "order"] | None = None
    directed: Arrivals = NO_ARRIVALS
    """Matched instances in which only some ranks wait: pairs, and operations with a known root."""
    unmatched_by: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of unmatched instances by reason; the values add up to ``unmatched``."""
    partial: Arrivals = NO_ARRIVALS
    """Unmatched instances whose recorded ranks may well be in one collective, with other ranks of it missing."""


_OBSTACLES: Final = (
    "",
    "rank_missing",
    "order_shifted",
    "ranks_differ",
    "incomplete",
    "operation_differs",
    "bytes_differ",
    "dtype_differs",
    "root_differs",
)
"""Reasons why an instance is not matched, the first that holds. ``rank_missing``: a member of the group is not recorded, or the
members are not known."""
_MISSING, _SHIFTED, _ELSEWHERE, _INCOMPLETE, _OPERATION, _BYTES, _DTYPE, _ROOT = range(1, len(_OBSTACLES))


def match_collectives(
    by_rank: Mapping[int, Sequence[CollectiveRecord]] | CollectiveColumns, *, world_size: int | None = None
) -> Matching:
    """Match by (group, sequence number) where every record of the group has one, else by order within (step, group).

    An instance counts as matched when each rank of its group has it with the same operation, size and data type. Groups whose
    ranks are not recorded are assumed to span the world. With fewer recorded ranks than ``world_size``, nothing in such groups
    can be matched, because a missing rank may have arrived last. Sends and receives are matched by ``_pairs``.
    """
    records = by_rank if isinstance(by_rank, CollectiveColumns) else records_of(sorted(by_rank.items()))
    cells = _GroupCells(records, np.flatnonzero(~records.p2p))
    every, excluded = cells.judged(cells.instances())
    obstacle = _obstacles(every, cells, world_size)
    possible = (every.rule == EVERYBODY) & (obstacle != 0) & ~cells.shifted[cells.of(every)] & (_disagreements(every) == 0)
    complete = (obstacle == 0) & (every.count > 1)
    matches = every.chosen(complete & (every.rule == EVERYBODY))
    pairs, unpaired, unknown_peer = _pairs(records, world_size)
    unmatched = _counts(obstacle) + unpaired
    sequenced = int(cells.by_sequence[cells.of(matches)].sum())
    return Matching(
        matches,
        unmatched.total(),
        dict(sorted((excluded + Counter({"p2p": unknown_peer} if unknown_peer else {})).items())),
        None if not len(matches) else "sequence" if 2 * sequenced >= len(matches) else "order",
        directed=every.chosen(complete & (every.rule != EVERYBODY)).joined(pairs),
        unmatched_by=dict(sorted(unmatched.items())),
        partial=every.chosen(possible),
    )


def _counts(obstacle: Numbers) -> Counter[str]:
    return Counter({_OBSTACLES[at]: count for at, count in enumerate(np.bincount(obstacle).tolist()) if at and count})


class _GroupCells:
    """Records of one group in one step each, in the order in which they appear."""

    def __init__(self, records: CollectiveColumns, row: Numbers) -> None:
        self.records, self._row = records, row
        self._first, self._cell = numbered(records.step[row], records.group[row], records.team[row])
        self.group, self.team = records.group[row][self._first], records.team[row][self._first]
        self.step = records.step[row][self._first]
        without = records.sequence[row] == NONE
        self.by_sequence: Flags = np.bincount(self._cell, weights=without, minlength=len(self._first)) == 0
        self.shifted: Flags = np.zeros(len(self._first), np.bool_)
        """A rank that lacks a part of the step has a shifted order, so order is no evidence."""
        self._number = np.full(len(records.step), -1)
        self._number[row] = self._cell
        _, self._name = numbered(self.step, self.group)
        self.is_shared: Flags = np.bincount(self._name)[self._name] > 1 if len(row) else np.zeros(0, np.bool_)
        """Whether another cell has the same group and step, and other members."""

    def of(self, instances: Arrivals) -> Numbers:
        """Return the cell of each instance."""
        return self._number[instances.leader]

    @cached_property
    def _ranks(self) -> list[Numbers]:
        return [self.records.rank[self._row[rows]] for rows in by_key(self._cell)]

    def ranks(self, cell: int) -> set[int]:
        """Return the ranks of a cell."""
        return set(np.unique(self._ranks[cell]).tolist())

    def elsewhere(self, cell: int) -> set[int]:
        """Return the ranks that are in a cell of the same group and step, but not in this one."""
        same = np.flatnonzero(self._name == self._name[cell]).tolist()
        return set[int]().union(*map(self.ranks, same)) - self.ranks(cell)

    def instances(self) -> Arrivals:
        """Return the records with the same place in a cell as instances, ordered by cell and place."""
        key = self.records.sequence[self._row].copy()
        unsequenced = np.flatnonzero(~self.by_sequence[self._cell])
        if len(unsequenced):
            rank, cell = self.records.rank[self._row[unsequenced]], self._cell[unsequenced]
            order = np.lexsort((self.records.index[self._row[unsequenced]], rank, cell))
            begins = np.flatnonzero(_changes(combined(cell, rank)[order]))
            lengths = np.diff(np.append(begins, len(unsequenced)))
            key[unsequenced[order]] = np.arange(len(unsequenced)) - np.repeat(begins, lengths)
            cells = cell[order][begins]
            edges = np.flatnonzero(_changes(cells))
            differ = np.maximum.reduceat(lengths, edges) != np.minimum.reduceat(lengths, edges)
            self.shifted[cells[edges]] = differ
        code = combined(self._cell, key)
        # Stable, so ranks ascend within an instance.
        order = np.argsort(code, kind="stable")
        code, row = code[order], self._row[order]
        # Of several records with one sequence number on a rank, the last counts.
        is_duplicate = (code[:-1] == code[1:]) & (self.records.rank[row[:-1]] == self.records.rank[row[1:]])
        last = np.append(~is_duplicate, np.ones(min(1, len(row)), np.bool_))
        code, row = code[last], row[last]
        begins = np.flatnonzero(_changes(code))
        return arrivals_at(self.records, row, np.diff(np.append(begins, len(row))))

    def judged(self, every: Arrivals) -> tuple[Arrivals, Counter[str]]:
        """Return the instances that show which rank waits for which, and the number of others by reason."""
        rows = [operation(name) for name in self.records.ops]
        reasons = list(dict.fromkeys([*(row.excluded for row in rows), "uneven_all_to_all"]))
        never = np.array([row.rule in (None, "pair") for row in rows], dtype=np.bool_)
        rootless = np.array([bool(row.excluded) for row in rows], dtype=np.bool_)
        why = np.array([reasons.index(row.excluded) for row in rows], dtype=np.int64)
        if not len(every):
            return every, Counter()
        op = self.records.op[every.row]
        left_out = never[op] | (rootless[op] & (self.records.root[every.row] == NONE))
        place = every.least(np.where(left_out, np.arange(len(op)), len(op)))
        is_left_out = place < len(op)
        reason = np.where(is_left_out, why[op[np.minimum(place, len(op) - 1)]], -1)
        exchange = np.array([name == "all_to_all" for name in self.records.ops])
        uneven = ~is_left_out & every.least(exchange[op]) & ~every.agree(self.records.bytes[every.row])
        reason[uneven] = reasons.index("uneven_all_to_all")
        counts = np.bincount(reason[reason >= 0], minlength=len(reasons)).tolist()
        exclusions = Counter({name: count for name, count in zip(reasons, counts, strict=True) if count})
        return every.chosen(reason < 0), exclusions


def _changes(values: Numbers) -> Flags:
    """Return where a value differs from the one before; true for the first."""
    return np.concatenate([np.ones(min(1, len(values)), np.bool_), values[1:] != values[:-1]])


def _obstacles(every: Arrivals, cells: _GroupCells, world_size: int | None) -> Numbers:
    """Return the reason why each instance is not matched, as an index into ``_OBSTACLES``."""
    if not len(every):
        return np.zeros(0, np.int64)
    records = every.records
    first, place_of = numbered(cells.group, cells.team)
    expected = _expected(cells, first, place_of, world_size)
    recorded = set(records.ranks)
    missing = np.array([members is None or not members <= recorded for members in expected])
    cell = cells.of(every)
    place = place_of[cell]
    # Members of each place as sorted codes of (place, rank); places with a missing rank do not matter.
    width = max(recorded, default=0) + 1
    codes = np.array(
        [at * width + rank for at, members in enumerate(expected) if not missing[at] for rank in sorted(members or ())], np.int64
    )
    cell_codes = np.repeat(place, every.count) * width + every.rank
    at = np.minimum(np.searchsorted(codes, cell_codes), max(0, len(codes) - 1))
    inside = every.sum((codes[at] == cell_codes).astype(np.int64)) if len(codes) else np.zeros(len(every), np.int64)
    absent = np.array([len(members or ()) for members in expected])[place] - inside
    obstacle = _disagreements(every)
    obstacle[(absent > 0) | (inside != every.count)] = _INCOMPLETE
    # Ranks that recorded a group of the same name in the step with other members.
    for number in np.flatnonzero((absent > 0) & cells.is_shared[cell] & ~missing[place]).tolist():
        ranks = set(every.rank[every.first[number] : every.first[number + 1]].tolist())
        if ((expected[int(place[number])] or set()) - ranks) & cells.elsewhere(int(cell[number])):
            obstacle[number] = _ELSEWHERE
    obstacle[cells.shifted[cell]] = _SHIFTED
    obstacle[missing[place]] = _MISSING
    return obstacle


def _expected(cells: _GroupCells, first: Numbers, place_of: Numbers, world_size: int | None) -> list[set[int] | None]:
    """Return the ranks of each (group, team) of ``cells``.

    Where the members are not recorded, they are the ranks that use the group in any step; ``None`` where not all are there.
    """
    expected: list[set[int] | None] = []
    for at, cell in enumerate(first.tolist()):
        if cells.team[cell] != NONE:
            expected.append(set(cells.records.members[cells.team[cell]]))
            continue
        users = set[int]().union(*map(cells.ranks, np.flatnonzero(place_of == at).tolist()))
        is_known = len(users) > 1 and (world_size is None or len(cells.records.ranks) >= world_size)
        expected.append(users if is_known else None)
    return expected


def _disagreements(instances: Arrivals, *, of_pairs: bool = False) -> Numbers:
    """Return why the records of each instance cannot be one collective; 0 if they can. What is not recorded agrees."""
    records, obstacles = instances.records, np.zeros(len(instances), np.int64)
    fields = [(_ROOT, records.root), (_DTYPE, records.dtype), (_BYTES, records.bytes), (_OPERATION, records.op)]
    for obstacle, values in fields[:-1] if of_pairs else fields:
        obstacles[~instances.agree(values[instances.row])] = obstacle
    return obstacles


def _pairs(records: CollectiveColumns, world_size: int | None) -> tuple[Arrivals, Counter[str], int]:
    """Pair sends and receives by (step, group, sender, receiver) and order.

    Messages between two ranks of a group do not overtake each other. Sequence numbers are not usable: they count each rank's own
    operations with all its peers. The record names the other end; in a group or world of two it can only be the other rank.
    Where one end recorded more operations than the other, none of them is paired. Returns also the number of messages that
    could not be paired, by reason, and of those whose records do not identify the other end.
    """
    row = np.flatnonzero(records.p2p)
    row = row[np.lexsort((records.index[row], records.rank[row]))]
    peer = _peers(records, row, world_size)
    kinds = [(records.ops.index(name) if name in records.ops else -1) for name in ("send", "recv")]
    is_send = records.op[row] == kinds[0]
    usable = (peer != NONE) & (is_send | (records.op[row] == kinds[1]))
    # Every message has two ends, so two records.
    unknown = (int((~usable).sum()) + 1) // 2
    row, peer, is_send = row[usable], peer[usable], is_send[usable]
    rank = records.rank[row]
    sender, receiver = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    first, pair_of_row = numbered(records.step[row], records.group[row], sender, receiver)
    sends, receives = (np.bincount(pair_of_row[side], minlength=len(first)) for side in (is_send, ~is_send))
    is_recorded = np.isin(sender[first], records.ranks) & np.isin(receiver[first], records.ranks)
    unmatched = Counter[str]()
    for reason, is_of_reason in (
        ("rank_missing", ~is_recorded),
        ("order_shifted", is_recorded & (sends != receives) & (sends > 0) & (receives > 0)),
        ("incomplete", is_recorded & (sends != receives) & ((sends == 0) | (receives == 0))),
    ):
        unmatched[reason] += int(np.maximum(sends, receives)[is_of_reason].sum())
    chosen = is_recorded & (sends == receives)
    inside = chosen[pair_of_row]
    row, pair_of_row, is_send = row[inside], pair_of_row[inside], is_send[inside]
    order = np.argsort(pair_of_row, kind="stable")
    sent, received = (row[order][is_send[order] == side] for side in (True, False))
    every = arrivals_at(records, np.column_stack([sent, received]).ravel(), np.full(len(sent), 2), pairs=True)
    differs = _disagreements(every, of_pairs=True)
    unmatched += _counts(differs)
    return every.chosen(differs == 0), +unmatched, unknown


def _peers(records: CollectiveColumns, row: Numbers, world_size: int | None) -> Numbers:
    """Return the other end of each send and receive; ``NONE`` where it is not known."""
    peer, rank, team = records.peer[row].copy(), records.rank[row], records.team[row]
    unknown = peer == NONE
    for number, members in [*enumerate(records.members), (NONE, tuple(records.ranks) if world_size == 2 else ())]:
        ends = set(members)
        to_fill = unknown & (team == number)
        if len(ends) == 2 and to_fill.any():
            to_fill &= np.isin(rank, list(ends))
            peer[to_fill] = sum(ends) - rank[to_fill]
    peer[peer == rank] = NONE
    return peer
