"""Durations of collectives in a run directory: from the operations that a source has to blocks of columns, and back.

A helper writes the blocks of its rank while the job trains. Their rank is that of the folder, so none has to be inferred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from rankscope.analysis.collectives.world import least_ranks_of_groups
from rankscope.analysis.durations import flight_recorder, nccl_inspector
from rankscope.analysis.durations.calls import MAX_CALLS, Durations, RankCalls, Row
from rankscope.analysis.durations.logs import ProcessLog
from rankscope.analysis.durations.processes import Processes
from rankscope.runs.durations import DurationBlock, DurationGroup, DurationSource
from rankscope.runs.reader import RunReader

BLOCK_CALLS: Final = 1000
"""Largest number of operations in a block."""
_LARGEST: Final = 10**15
"""Largest number in a block, such as the distance of two times in microseconds; a larger one is damage."""


def blocks_of(source: DurationSource, calls: RankCalls) -> Iterator[DurationBlock]:
    """Yield blocks of some operations of a rank."""
    for first in range(0, len(calls.rows), BLOCK_CALLS):
        group, op, number, size, issued_ns, ended_ns, duration_us, flags, sizes = zip(
            *calls.rows[first : first + BLOCK_CALLS], strict=True
        )
        times_us = [time // 1000 for time in (*issued_ns, *ended_ns) if time]
        start_us, end_us = min(times_us, default=0), max(times_us, default=0)
        groups = {name: at for at, name in enumerate(dict.fromkeys(group))}
        ops = {name: at for at, name in enumerate(dict.fromkeys(op))}
        yield DurationBlock(
            source=source,
            start_unix_ns=1000 * start_us,
            end_unix_ns=1000 * end_us,
            groups=[calls.groups.get(name, DurationGroup(name)) for name in groups],
            ops=list(ops),
            group=[groups[name] for name in group],
            op=[ops[name] for name in op],
            number=[*number],
            size=[*size],
            issued_us=[time // 1000 - start_us if time else None for time in issued_ns],
            ended_us=[time // 1000 - start_us if time else None for time in ended_ns],
            duration_us=[*duration_us],
            flags=[*flags],
            bytes=[*sizes] if any(each is not None for each in sizes) else [],
        )


def _calls_of(blocks: Sequence[DurationBlock]) -> RankCalls:
    calls = RankCalls()
    for block in blocks:
        for group in block.groups:
            before = calls.groups.get(group.name)
            if before is None or (group.label and not before.label) or (group.ranks and not before.ranks):
                calls.groups[group.name] = group
        issued_ns, ended_ns = (
            [0 if time is None else block.start_unix_ns + 1000 * time for time in column]
            for column in (block.issued_us, block.ended_us)
        )
        calls.rows += map(
            Row,
            [block.groups[at].name for at in block.group],
            [block.ops[at] for at in block.op],
            block.number,
            block.size,
            issued_ns,
            ended_ns,
            block.duration_us,
            block.flags,
            block.bytes or [None] * len(block.group),
        )
    return calls


class RecentBlocks(deque[DurationBlock]):
    """Last blocks of a rank."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def add(self, block: DurationBlock, most: int) -> None:
        """Append a block, and drop the first ones that are not among the last ``most`` operations."""
        self.append(block)
        self._calls += len(block.group)
        while self._calls - len(self[0].group) >= max(1, most):
            self._calls -= len(self.popleft().group)


def read_durations(reader: RunReader, attempt: int, ranks: Sequence[int]) -> dict[int, list[DurationBlock]]:
    """Read the durations of collectives of the ranks that have some; about the last ``MAX_CALLS`` operations of all ranks."""
    recent: dict[int, RecentBlocks] = {}
    for rank in ranks:
        for block in reader.durations(attempt, rank):
            recent.setdefault(rank, RecentBlocks()).add(block, MAX_CALLS // len(ranks))
    return {rank: list(blocks) for rank, blocks in recent.items()}


def stored_durations(
    blocks: Mapping[int, Sequence[DurationBlock]], world_size: int, *, most: int = MAX_CALLS
) -> Durations | None:
    """Return the durations of a run from the blocks of its ranks.

    Of all ranks together at most the last ``most`` operations count. Blocks of the source of most ranks are used. ``None`` where
    there are none. Raises ``InputError`` if no operation has a duration.
    """
    ranks = {rank: [block for block in rows if _is_usable(block)] for rank, rows in blocks.items()}
    sources = [rows[-1].source for rows in ranks.values() if rows]
    if not sources:
        return None
    source = max(sources, key=sources.count)
    each = max(1, most // len(ranks))
    calls = {rank: _calls_of(rows) for rank, every in ranks.items() if (rows := _last(every, source, each))}
    groups = [group for of_rank in calls.values() for group in of_rank.groups.values()]
    members = [group.ranks for group in groups if group.ranks]
    world_size = max(world_size, least_ranks_of_groups([calls, *members], [group.size or 0 for group in groups]))
    if source == "nccl_inspector":
        logs = {
            rank: ProcessLog(Path(f"rank {rank}"), rows=deque(of_rank.rows), groups=of_rank.groups)
            for rank, of_rank in calls.items()
        }
        return nccl_inspector.durations_of(Processes(logs, world_size), [], most=MAX_CALLS)
    for of_rank in calls.values():
        # Operations that ended late are in a later block.
        of_rank.rows.sort(key=attrgetter("issued_ns"))
    return flight_recorder.durations_of(calls, world_size, [])


def _is_usable(block: DurationBlock) -> bool:
    columns = (block.issued_us, block.ended_us, block.number, block.size, block.bytes, [block.start_unix_ns // 4000])
    is_possible = all(number is None or abs(number) < _LARGEST for column in columns for number in column)
    return bool(block.group) and block.is_consistent and is_possible


def _last(rows: Sequence[DurationBlock], source: DurationSource, most: int) -> RecentBlocks:
    """Return the last blocks of ``source`` with about ``most`` operations, at least one block."""
    recent = RecentBlocks()
    for block in rows:
        if block.source == source:
            recent.add(block, most)
    return recent
