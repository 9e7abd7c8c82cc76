"""Durations of collectives in a run directory: from the operations that a source has to blocks of columns, and back.

A helper writes the blocks of its rank while the job trains. Their rank is that of the folder, so none has to be inferred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rankscope.analysis.durations.duration_calls import LONGEST_US, MAX_CALLS, DurationCall, RankCalls
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


def calls_of_blocks(blocks: Iterable[DurationBlock]) -> RankCalls:
    """Return the operations of a rank in some of its blocks."""
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
            DurationCall,
            [block.groups[at].name for at in block.group],
            [block.ops[at] for at in block.op],
            block.number,
            block.size,
            issued_ns,
            ended_ns,
            [us if us is not None and 0 <= us < LONGEST_US else None for us in block.duration_us],
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


def last_blocks(rows: Sequence[DurationBlock], source: DurationSource, most: int) -> RecentBlocks:
    """Return the last blocks of ``source`` with about ``most`` operations, at least one block."""
    recent = RecentBlocks()
    for block in rows:
        if block.source == source:
            recent.add(block, most)
    return recent


def is_usable(block: DurationBlock) -> bool:
    """Return whether a block has operations, and its columns make sense."""
    columns = (block.issued_us, block.ended_us, block.number, block.size, block.bytes, [block.start_unix_ns // 4000])
    is_possible = all(number is None or abs(number) < _LARGEST for column in columns for number in column)
    return bool(block.group) and block.is_consistent and is_possible
