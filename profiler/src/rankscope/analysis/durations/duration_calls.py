"""Operations of all ranks with their durations, from any source: rows as they are read, and columns to compute with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from rankscope.analysis.collectives.arrivals import CollectiveColumns, Flags, Floats, Numbers, combined, offsets
from rankscope.analysis.collectives.cycles import IssuedOperations
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.operations import operation
from rankscope.runs.durations import AUTOGRAD, TRANSFER, DurationGroup

MAX_CALLS: Final = 500_000
"""Maximum number of operations of all ranks that are compared, the last ones."""

LONGEST_US: Final = 86_400_000_000
"""Time from which on the duration of an operation makes no sense: a day."""


class DurationCall(NamedTuple):
    """Operation of one rank. Of a source's records only this is kept, because they would fill the memory."""

    group: str
    op: str
    number: int
    """Number in the group; in logs of NCCL Inspector among those of its kind there."""
    size: int
    """Elements of the input, from NCCL Inspector bytes; of a batch the number of its parts."""
    issued_ns: int
    """Time at which the host issued it; 0 where unknown."""
    ended_ns: int
    """End on the rank's clock; 0 where unknown."""
    duration_us: float | None
    flags: int = 0
    """``TRANSFER``, ``PART`` and ``AUTOGRAD`` of ``rankscope.runs.durations``."""
    bytes: int | None = None
    """Bytes of all inputs and outputs of an all-to-all."""


@dataclass(slots=True)
class RankCalls:
    """Operations of one rank."""

    rows: list[DurationCall] = field(default_factory=list)
    groups: dict[str, DurationGroup] = field(default_factory=dict)
    """Process groups by name."""
    damaged: int = 0
    """Number of records that could not be used."""

    @property
    def has_durations(self) -> bool:
        """Whether any operation has a duration."""
        return any(row.duration_us is not None for row in self.rows)


@dataclass(frozen=True)
class DurationCalls:
    """Operations of all ranks as columns, [calls]; those of a rank follow each other in the order in which it issued them."""

    ranks: list[int]
    """All ranks, ascending, also those without an operation."""
    groups: list[str]
    teams: list[tuple[int, ...]]
    ops: list[str]
    rank: Numbers
    group: Numbers
    """Index into ``groups``. Groups of different ranks may have one name."""
    team: Numbers
    """Index into ``teams``; ``NONE`` where the members of the group are not known."""
    op: Numbers
    """Index into ``ops``."""
    number: Numbers
    size: Numbers
    issued_ns: Numbers
    ended_ns: Numbers
    duration_us: Floats
    """NaN where unknown."""
    flags: Numbers
    bytes: Numbers

    @cached_property
    def place(self) -> Numbers:
        """Place of the rank of each operation."""
        return np.searchsorted(self.ranks, self.rank)

    @cached_property
    def first(self) -> Numbers:
        """Offset of the first operation of each rank, and at last the number of all, [ranks + 1]."""
        return offsets(np.bincount(self.place, minlength=len(self.ranks)))

    def of_ranks(self) -> Iterator[tuple[int, slice]]:
        """Yield each rank with the places of its operations."""
        for rank, begin, end in zip(self.ranks, self.first[:-1].tolist(), self.first[1:].tolist(), strict=True):
            yield rank, slice(begin, end)

    def has(self, flag: int) -> Flags:
        """Return which operations have a flag."""
        return np.asarray(self.flags & flag != 0)

    def named(self, *names: str) -> Flags:
        """Return which operations have one of these names."""
        return np.isin(self.op, [at for at, name in enumerate(self.ops) if name in names])

    def of_family(self, family: str) -> Flags:
        """Return which operations belong to a family."""
        return np.isin(self.op, [at for at, name in enumerate(self.ops) if operation(name).family == family])

    @cached_property
    def is_matchable(self) -> Flags:
        """False for sends and receives, and for groups whose members are unknown; torch calls the group of all ranks "0"."""
        groups_of_all = [at for at, name in enumerate(self.groups) if name.rpartition(":")[2] == "0"]
        return np.asarray(~self.has(TRANSFER) & ((self.team != NONE) | np.isin(self.group, groups_of_all)))

    def chosen(self, wanted: Flags) -> DurationCalls:
        """Return the operations where ``wanted``."""
        names = ("rank", "group", "team", "op", "number", "size", "issued_ns", "ended_ns", "duration_us", "flags", "bytes")
        return replace(self, **{name: getattr(self, name)[wanted] for name in names})

    def issued(self, varying: Flags) -> IssuedOperations:
        """Return the operations as they were issued. ``varying``: those whose sizes may differ from step to step."""
        key = np.full(len(self.rank), -1)
        key[self.is_matchable] = np.unique(combined(self.group, self.number)[self.is_matchable], return_inverse=True)[1]
        reducing = np.isin(self.op, [at for at, name in enumerate(self.ops) if operation(name).reduces_equal])
        backward = self.has(AUTOGRAD)
        kind = combined(self.group, self.op, np.where(varying, 0, self.size), backward.astype(np.int64))
        kind = np.unique(kind, return_inverse=True)[1]
        return IssuedOperations(self.first, key, self.group, kind, self.issued_ns, backward, np.where(reducing, self.size, 0))

    def records(self, step: Numbers, index: Numbers, start_ns: Numbers) -> CollectiveColumns:
        """Return the operations as records of collectives that begin at ``start_ns``, the ``index``-th of ``step``."""
        unknown = np.full(len(self.rank), NONE)
        false = np.zeros(len(self.rank), np.bool_)
        nothing = np.zeros(0, np.int64)
        return CollectiveColumns(
            self.ranks,
            self.groups,
            self.teams,
            self.ops,
            rank=self.rank,
            step=step,
            group=self.group,
            team=self.team,
            size=unknown,
            index=index,
            sequence=self.number,
            op=self.op,
            dtype=unknown,
            bytes=self.bytes,
            arrival=start_ns,
            start=start_ns,
            end=start_ns + np.rint(1000 * self.duration_us).astype(np.int64),
            on_cpu=false,
            p2p=false,
            peer=unknown,
            root=unknown,
            spans=np.zeros(len(self.rank) + 1, np.int64),
            span_start=nothing,
            span_end=nothing,
            rows=None,
        )


def calls_of(ranks: Mapping[int, RankCalls]) -> DurationCalls:
    """Return the operations of all ranks as columns."""
    groups: dict[str, int] = {}
    teams: dict[tuple[int, ...], int] = {}
    ops: dict[str, int] = {}
    place: list[int] = []
    team: list[int] = []
    rows: list[DurationCall] = []
    for rank in sorted(ranks):
        of_rank = ranks[rank]
        number = {
            name: teams.setdefault(tuple(group.ranks), len(teams))
            for name, group in of_rank.groups.items()
            if group.ranks is not None
        }
        place += [rank] * len(of_rank.rows)
        team += [number.get(row.group, NONE) for row in of_rank.rows]
        rows += of_rank.rows
    columns = dict(zip(DurationCall._fields, zip(*rows, strict=True) if rows else [()] * len(DurationCall._fields), strict=True))
    return DurationCalls(
        sorted(ranks),
        rank=np.array(place, np.int64),
        team=np.array(team, np.int64),
        group=np.array([groups.setdefault(name, len(groups)) for name in columns["group"]], np.int64),
        op=np.array([ops.setdefault(name, len(ops)) for name in columns["op"]], np.int64),
        duration_us=np.array([np.nan if us is None else us for us in columns["duration_us"]], np.float64),
        bytes=np.array([NONE if size is None else size for size in columns["bytes"]], np.int64),
        **{name: np.array(columns[name], np.int64) for name in ("number", "size", "issued_ns", "ended_ns", "flags")},
        groups=list(groups),
        teams=list(teams),
        ops=list(ops),
    )
