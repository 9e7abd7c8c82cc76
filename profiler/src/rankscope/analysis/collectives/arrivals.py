"""Tables of collectives: the records of all ranks as columns, and the arrivals of ranks at the instances that they share.

A job of 1,024 ranks records millions of collectives in a few steps, so nothing here is an object per record. An instance has the
arrivals from ``first[i]`` to ``first[i + 1]``; sums over its ranks are sums over these, by ``np.add.reduceat`` or ``bincount``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.growing_columns import NONE, GrowingColumn, NameNumbers, whole_numbers
from rankscope.analysis.operations import Rule, operation
from rankscope.runs.records import CollectiveRecord

Numbers = NDArray[np.int64]
"""Whole numbers. Columns of small ones have 32 bits."""
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

RULES: Final[tuple[Rule, ...]] = ("everybody", "from_root", "to_root", "pair")


def arrival_ns(record: CollectiveRecord) -> int:
    """Return the arrival of a rank: the start of its kernel on a device, the calling thread's enqueue on the CPU."""
    return record.enqueue_unix_ns if record.stream is None else record.start_unix_ns


class Match(msgspec.Struct, frozen=True):
    """One collective on all its ranks, to show it; ``records[i]`` is the record of ``ranks[i]``. A pair has the sender first."""

    step: int
    group: str
    op: str
    ranks: list[int]
    records: list[CollectiveRecord]
    rule: Rule = "everybody"
    root: int | None = None


@dataclass(frozen=True)
class CollectiveColumns:
    """Collectives of all ranks as columns, [records]; ranks ascending, those of one rank in the order recorded."""

    ranks: list[int]
    """All ranks that were recorded, also those without a collective."""
    groups: list[str]
    members: list[tuple[int, ...]]
    ops: list[str]
    rank: Numbers
    step: Numbers
    group: Numbers
    """Index into ``groups``."""
    team: Numbers
    """Index into ``members``; ``NONE`` where the ranks of the group are not recorded."""
    size: Numbers
    index: Numbers
    sequence: Numbers
    op: Numbers
    dtype: Numbers
    """Number of the data type."""
    bytes: Numbers
    arrival: Numbers
    start: Numbers
    end: Numbers
    on_cpu: Flags
    p2p: Flags
    peer: Numbers
    root: Numbers
    spans: Numbers
    """Offset of each record's compute spans, [records + 1]."""
    span_start: Numbers
    span_end: Numbers
    rows: list[CollectiveRecord] | None
    """The records themselves, where they were kept to be shown."""


_FIELDS: Final = CollectiveRecord.__struct_fields__
_LONGEST_NS: Final = 2.0**60
"""36 years; damaged records have longer spans, which are not whole numbers of 64 bits."""


class CollectiveColumnsBuilder:
    """Columns of the records of one rank after the other, whose records can be dropped at once."""

    def __init__(self) -> None:
        self._groups, self._teams, self._ops, self._types = NameNumbers(), NameNumbers(), NameNumbers(), NameNumbers()
        self._ranks: list[int] = []
        self._columns = {name: GrowingColumn(dtype) for name, dtype in _DTYPES.items()}

    def add(self, rank: int, rows: Sequence[CollectiveRecord]) -> None:
        """Add the records of the next rank; ranks ascend."""
        self._ranks.append(rank)
        if not rows:
            return
        values = dict(zip(_FIELDS, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True))
        enqueue, start = (whole_numbers(values[name], np.int64) for name in ("enqueue_unix_ns", "start_unix_ns"))
        on_cpu = np.array([stream is None for stream in values["stream"]], dtype=np.bool_)
        spans = values["compute_spans_us"]
        count = np.fromiter(map(len, spans), np.int64, len(rows))
        flat = np.array([span for rank_spans in spans for span in rank_spans], dtype=np.float64).reshape(-1, 2)
        edges = np.rint(np.clip(flat * 1000, -_LONGEST_NS, _LONGEST_NS)).astype(np.int64) + np.repeat(enqueue, count)[:, None]
        converted = {
            "rank": np.full(len(rows), rank),
            "group": self._groups.of(values["group"]),
            "team": self._teams.of_lists(values["group_ranks"]),
            "op": self._ops.of(values["op"]),
            "dtype": self._types.of(values["dtype"]),
            "arrival": np.where(on_cpu, enqueue, start),
            "start": start,
            "on_cpu": on_cpu,
            "p2p": np.array(values["p2p"], dtype=np.bool_),
            "spans": count,
            "span_start": edges[:, 0],
            "span_end": edges[:, 1],
        }
        for name, column in self._columns.items():
            column.add(converted[name] if name in converted else whole_numbers(values[_NAMES.get(name, name)], column.dtype))

    def build(self, rows: list[CollectiveRecord] | None = None) -> CollectiveColumns:
        """Return the columns of all ranks, with the records themselves where they are kept."""
        columns = {name: column.values() for name, column in self._columns.items()}
        columns["spans"] = offsets(columns["spans"])
        return CollectiveColumns(self._ranks, self._groups.names, self._teams.names, self._ops.names, **columns, rows=rows)


def records_of(by_rank: Iterable[tuple[int, Sequence[CollectiveRecord]]]) -> CollectiveColumns:
    """Convert the records of each rank to columns and keep them, to be shown. Ranks ascend."""
    builder, kept_rows = CollectiveColumnsBuilder(), list[CollectiveRecord]()
    for rank, rows in by_rank:
        builder.add(rank, rows)
        kept_rows += rows
    return builder.build(kept_rows)


_NAMES: Final = {"size": "group_size", "end": "end_unix_ns"}
"""Columns whose names differ from those of the records."""

_DTYPES: Final[dict[str, type[Any]]] = {
    **dict.fromkeys(("rank", "group", "team", "size", "index", "op", "dtype", "peer", "root"), np.int32),
    **dict.fromkeys(("step", "sequence", "bytes", "arrival", "start", "end", "spans", "span_start", "span_end"), np.int64),
    **dict.fromkeys(("on_cpu", "p2p"), np.bool_),
}


def numbered(*columns: Numbers) -> tuple[Numbers, Numbers]:
    """Number the combinations of values in the order in which they appear; returns the first row and the number of each row."""
    _, first, inverse = np.unique(combined(*columns), return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return first[order], number[inverse]


def combined(*columns: Numbers) -> Numbers:
    """Return numbers that are equal, and ascend, as the combinations of values do; the first column counts most."""
    code = np.zeros(len(columns[0]), np.int64)
    width = 1
    for column in columns if len(code) else ():
        is_wide = int(column.max()) - int(column.min()) >= 2**31
        values = np.unique(column, return_inverse=True)[1] if is_wide else column - column.min()
        values_width = int(values.max()) + 1
        if width * values_width >= 2**62:
            code = np.unique(code, return_inverse=True)[1]
            width = int(code.max()) + 1
        code = code * values_width + values
        width *= values_width
    return code


@dataclass(frozen=True)
class Arrivals:
    """Instances of collectives, with an arrival for each of their ranks; ranks ascend within an instance (pair: sender first)."""

    records: CollectiveColumns
    row: Numbers
    """Row in ``records``, [arrivals]."""
    first: Numbers
    """Offset of the first arrival of each instance, and at last the number of all, [instances + 1]."""
    op: Numbers
    """Index into the names of operations, [instances]. In a pair it is that of the send."""
    rule: Numbers
    """Index into ``RULES``, [instances]."""
    end_ns: Numbers
    """End of the collective on each rank, on its own clock, [arrivals]."""

    def __len__(self) -> int:
        return len(self.op)

    def __iter__(self) -> Iterator[Match]:
        """Yield an object for each instance, to show it."""
        rows, records = self.records.rows or [], self.records
        edges, row, rank = self.first.tolist(), self.row.tolist(), self.rank.tolist()
        for at, (op, rule) in enumerate(zip(self.op.tolist(), self.rule.tolist(), strict=True)):
            rows_of_instance = slice(edges[at], edges[at + 1])
            match_records = [rows[number] for number in row[rows_of_instance]]
            root = None if rule == PAIR else match_records[0].root
            yield Match(
                match_records[0].step,
                match_records[0].group,
                records.ops[op],
                rank[rows_of_instance],
                match_records,
                RULES[rule],
                root,
            )

    @cached_property
    def count(self) -> Numbers:
        """Number of ranks of each instance."""
        return np.diff(self.first)

    @property
    def instance(self) -> Numbers:
        """Instance of each arrival."""
        return np.repeat(np.arange(len(self)), self.count)

    @cached_property
    def rank(self) -> Numbers:
        """Rank of each arrival."""
        return self.records.rank[self.row]

    @cached_property
    def leader(self) -> Numbers:
        """Row in ``records`` of the first rank of each instance."""
        return self.row[self.first[:-1]]

    @cached_property
    def step(self) -> Numbers:
        """Step of each instance."""
        return self.records.step[self.leader]

    @cached_property
    def group(self) -> Numbers:
        """Group of each instance, as an index into the names of groups."""
        return self.records.group[self.leader]

    @property
    def arrival_ns(self) -> Numbers:
        """Arrival of each rank, on its own clock."""
        return self.records.arrival[self.row]

    @cached_property
    def inside_ns(self) -> Numbers:
        """Duration of the collective on each rank from its arrival, waiting included."""
        return self.end_ns - self.arrival_ns

    @cached_property
    def shortest_ns(self) -> Numbers:
        """Shortest such duration of each instance."""
        return self.least(self.inside_ns)

    def least(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the least of the values [arrivals] of each instance."""
        return np.minimum.reduceat(values, self.first[:-1]) if len(self) else values[:0]

    def most(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the largest of the values [arrivals] of each instance."""
        return np.maximum.reduceat(values, self.first[:-1]) if len(self) else values[:0]

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of the values [arrivals] of each instance."""
        return np.add.reduceat(values, self.first[:-1]) if len(self) else values[:0]

    @cached_property
    def team(self) -> Numbers:
        """Number of the set of ranks of each instance."""
        mixed = self.rank.astype(np.uint64) + np.uint64(1)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 0x9E3779B97F4A7C15)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return numbered(self.sum(mixed).view(np.int64), self.count)[1]

    @cached_property
    def teams(self) -> list[tuple[int, ...]]:
        """Ranks of each team."""
        places = np.unique(self.team, return_index=True)[1]
        return [tuple(self.rank[self.first[at] : self.first[at + 1]].tolist()) for at in places.tolist()]

    @property
    def listed(self) -> list[tuple[int, ...] | None]:
        """Ranks of the group of each instance, where its records list them."""
        records = self.records
        return [None if team == NONE else records.members[team] for team in records.team[self.leader].tolist()]

    def ranks_of_groups(self) -> dict[str, tuple[int, ...]]:
        """Return the ranks of each group of this name, of the last instance."""
        pairs = dict.fromkeys(zip(self.group.tolist(), self.team.tolist(), strict=True))
        return {self.group_names[group]: self.teams[team] for group, team in pairs}

    @property
    def group_names(self) -> list[str]:
        """Names that ``group`` counts."""
        return self.records.groups

    def chosen(self, wanted: Flags) -> Arrivals:
        """Return the instances where ``wanted`` [instances]."""
        if wanted.all():
            return self
        inside = np.repeat(wanted, self.count)
        return Arrivals(
            self.records, self.row[inside], offsets(self.count[wanted]), self.op[wanted], self.rule[wanted], self.end_ns[inside]
        )

    def joined(self, other: Arrivals) -> Arrivals:
        """Return these instances and ``other`` ones of the same records."""
        return Arrivals(
            self.records,
            np.concatenate([self.row, other.row]),
            offsets(np.concatenate([self.count, other.count])),
            np.concatenate([self.op, other.op]),
            np.concatenate([self.rule, other.rule]),
            np.concatenate([self.end_ns, other.end_ns]),
        )

    def ending(self, end_ns: Numbers) -> Arrivals:
        """Return the same instances with other ends."""
        return replace(self, end_ns=end_ns)

    def agree(self, values: Numbers) -> Flags:
        """Return whether the values [arrivals] of each instance that are recorded are the same."""
        least = self.least(np.where(values == NONE, np.iinfo(values.dtype).max, values))
        return np.asarray(self.most(values) <= least)

    def busy(self, arrivals: NDArray[np.intp]) -> tuple[Numbers, Numbers, Numbers]:
        """Return the compute spans of these arrivals, on the ranks' own clocks: place in ``arrivals``, start and end."""
        spans, row = self.records.spans, self.row[arrivals]
        count = spans[row + 1] - spans[row]
        at = np.repeat(spans[row] - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        return np.repeat(np.arange(len(arrivals)), count), self.records.span_start[at], self.records.span_end[at]


def sums(number: Numbers, values: NDArray[Any], count: int) -> Floats:
    """Return the sum of the values of each number, from 0 to ``count`` - 1."""
    # Of no values, ``bincount`` returns whole numbers.
    return np.bincount(number, weights=values, minlength=count).astype(np.float64, copy=False)


EVERYBODY, FROM_ROOT, TO_ROOT, PAIR = range(4)


def offsets(count: Numbers) -> Numbers:
    """Return where each of some runs of these lengths begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64)


def arrivals_at(records: CollectiveColumns, row: Numbers, count: Numbers, *, pairs: bool = False) -> Arrivals:
    """Return the instances that the rows in ``records`` form, the first ``count[0]`` the first one."""
    first = offsets(count)
    op = records.op[row[first[:-1]]]
    codes = np.array([RULES.index(operation(name).rule or "everybody") for name in records.ops], dtype=np.int64)
    rule = np.full(len(op), PAIR) if pairs else codes[op] if len(op) else np.zeros(0, np.int64)
    return Arrivals(records, row, first, op, rule, records.end[row])


NO_ARRIVALS: Final = arrivals_at(records_of([]), np.zeros(0, np.int64), np.zeros(0, np.int64))
