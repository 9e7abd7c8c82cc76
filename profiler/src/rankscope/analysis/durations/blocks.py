"""Durations of collectives in a run directory: from what a source has to blocks of columns, and back to operations of all ranks.

A helper writes the blocks of its rank while the job trains. Their rank is that of the folder, so none has to be inferred.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.cycles import steps_of
from rankscope.analysis.collectives.world import least_ranks_of_groups
from rankscope.analysis.durations.calls import MAX_CALLS, Call, Durations, RankCalls
from rankscope.analysis.durations.flight import FLIGHT_WORDING, flight_call
from rankscope.analysis.durations.inspector import durations_of
from rankscope.analysis.durations.logs import LogRecord, ProcessLog
from rankscope.analysis.durations.processes import Processes
from rankscope.runs.durations import AUTOGRAD, PART, TRANSFER, DurationBlock, DurationGroup, DurationSource
from rankscope.runs.reader import RunReader

BLOCK_CALLS: Final = 1000
"""Largest number of operations in a block."""
_LONGEST_US: Final = 10**15
"""Largest distance of two times in a block; a longer one is damage."""


class _Row(NamedTuple):
    group: str
    op: str
    number: int
    size: int
    issued_us: int | None
    ended_us: int | None
    duration_us: float | None
    flags: int
    bytes: int | None = None


def blocks_of_log(log: ProcessLog, records: Sequence[LogRecord]) -> Iterator[DurationBlock]:
    """Yield blocks of some records of a log of NCCL Inspector."""
    groups = {
        name: DurationGroup(name, label=log.names.get(name, "") if log.has_names else None, place=place, size=size)
        for name, (place, size) in log.communicators.items()
    }
    rows = [
        _Row(one.communicator, one.op, one.number, one.bytes, one.issued_us, one.ended_us, one.duration_us, TRANSFER * one.is_p2p)
        for one in records
    ]
    return _blocks("nccl_inspector", rows, groups)


def blocks_of_calls(calls: RankCalls) -> Iterator[DurationBlock]:
    """Yield blocks of some operations of a Flight Recorder."""
    names = dict.fromkeys(call.group for call in calls.calls)
    groups = {name: DurationGroup(name, ranks=calls.members.get(name)) for name in names}
    rows = [
        _Row(
            call.group,
            call.op,
            call.sequence,
            call.elements,
            call.issued.created_ns // 1000,
            None,
            call.duration_us,
            TRANSFER * call.is_transfer | PART * call.is_part | AUTOGRAD * call.issued.backward,
            call.bytes,
        )
        for call in calls.calls
    ]
    return _blocks("flight_recorder", rows, groups)


def _blocks(source: DurationSource, rows: Sequence[_Row], groups: Mapping[str, DurationGroup]) -> Iterator[DurationBlock]:
    remaining = iter(rows)
    while some := list(islice(remaining, BLOCK_CALLS)):
        times = [time for row in some for time in (row.issued_us, row.ended_us) if time is not None]
        start, end = min(times, default=0), max(times, default=0)
        known = {name: at for at, name in enumerate(dict.fromkeys(row.group for row in some))}
        ops = {name: at for at, name in enumerate(dict.fromkeys(row.op for row in some))}
        yield DurationBlock(
            source=source,
            start_unix_ns=1000 * start,
            end_unix_ns=1000 * end,
            groups=[groups[name] for name in known],
            ops=list(ops),
            group=[known[row.group] for row in some],
            op=[ops[row.op] for row in some],
            number=[row.number for row in some],
            size=[row.size for row in some],
            issued_us=[None if row.issued_us is None else row.issued_us - start for row in some],
            ended_us=[None if row.ended_us is None else row.ended_us - start for row in some],
            duration_us=[row.duration_us for row in some],
            flags=[row.flags for row in some],
            bytes=[row.bytes for row in some] if any(row.bytes is not None for row in some) else [],
        )


def _rows(block: DurationBlock) -> Iterator[_Row]:
    start = block.start_unix_ns // 1000
    for at, group in enumerate(block.group):
        issued, ended = block.issued_us[at], block.ended_us[at]
        yield _Row(
            block.groups[group].name,
            block.ops[block.op[at]],
            block.number[at],
            block.size[at],
            None if issued is None else start + issued,
            None if ended is None else start + ended,
            block.duration_us[at],
            block.flags[at],
            block.bytes[at] if block.bytes else None,
        )


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
    found: dict[int, list[DurationBlock]] = {}
    for rank in ranks:
        recent = RecentBlocks()
        for block in reader.durations(attempt, rank):
            recent.add(block, MAX_CALLS // len(ranks))
        if recent:
            found[rank] = list(recent)
    return found


def stored_durations(
    blocks: Mapping[int, Sequence[DurationBlock]], world_size: int, *, most: int = MAX_CALLS
) -> tuple[Durations, bool] | None:
    """Return the durations of a run from the blocks of its ranks, and whether the host's times of all operations are known.

    Of all ranks together at most the last ``most`` operations count. Blocks of the source of most ranks are used. ``None`` where
    there are none. Raises ``InputError`` if no operation has a duration.
    """
    ranks = {
        rank: [one for one in rows if one.group and one.is_consistent and _is_possible(one)] for rank, rows in blocks.items()
    }
    sources = [rows[-1].source for rows in ranks.values() if rows]
    if not sources:
        return None
    source = max(sources, key=sources.count)
    each = max(1, most // len(ranks))
    last = {rank: some for rank, rows in ranks.items() if (some := _last(rows, source, each))}
    groups = [group for rows in last.values() for block in rows for group in block.groups]
    least = least_ranks_of_groups(
        [last, *(group.ranks for group in groups if group.ranks)], [group.size or 0 for group in groups]
    )
    world_size = max(world_size, least)
    issued = all(time is not None for rows in last.values() for block in rows for time in block.issued_us)
    warnings: list[str] = []
    found = _of_logs(last, world_size, warnings) if source == "nccl_inspector" else _of_recorders(last, world_size, warnings)
    return found, issued


def _is_possible(block: DurationBlock) -> bool:
    return all(time is None or abs(time) < _LONGEST_US for column in (block.issued_us, block.ended_us) for time in column)


def _last(rows: Sequence[DurationBlock], source: DurationSource, most: int) -> list[DurationBlock]:
    """Return the last blocks of ``source`` with about ``most`` operations, at least one block."""
    found: deque[DurationBlock] = deque()
    for block in reversed(rows):
        if block.source == source:
            found.appendleft(block)
            most -= len(block.group)
            if most <= 0:
                break
    return list(found)


def _of_logs(blocks: Mapping[int, Sequence[DurationBlock]], world_size: int, warnings: list[str]) -> Durations:
    logs = {}
    for rank, rows in blocks.items():
        log = logs[rank] = ProcessLog(Path(f"rank {rank}"))
        for block in rows:
            for group in block.groups:
                log.communicators.setdefault(group.name, (group.place or 0, group.size or 1))
                log.has_names |= group.label is not None
                if group.label:
                    log.names.setdefault(group.name, group.label)
            log.records += [
                LogRecord(
                    row.group,
                    row.op,
                    row.number,
                    row.size,
                    row.duration_us,
                    row.issued_us,
                    row.ended_us or 0,
                    bool(row.flags & TRANSFER),
                )
                for row in _rows(block)
            ]
    return durations_of(Processes(logs, world_size), warnings, most=MAX_CALLS)


def _of_recorders(blocks: Mapping[int, Sequence[DurationBlock]], world_size: int, warnings: list[str]) -> Durations:
    ranks = {}
    for rank, rows in blocks.items():
        members = {group.name: group.ranks for block in rows for group in block.groups if group.ranks}
        calls = [_flight_call(row, members) for block in rows for row in _rows(block)]
        # Operations that ended late are in a later block.
        ranks[rank] = RankCalls(sorted(calls, key=lambda call: call.issued.created_ns), members)
    return Durations("flight_recorder", ranks, world_size, FLIGHT_WORDING, steps_of, warnings)


def _flight_call(row: _Row, members: Mapping[str, list[int]]) -> Call:
    return flight_call(
        row.group,
        row.op,
        row.number,
        is_matchable=not row.flags & TRANSFER and (row.group in members or row.group.rpartition(":")[2] == "0"),
        by_autograd=bool(row.flags & AUTOGRAD),
        elements=row.size,
        bytes=row.bytes,
        created_ns=1000 * (row.issued_us or 0),
        duration_us=row.duration_us,
        is_part=bool(row.flags & PART),
    )


StepsAt = Callable[[int, NDArray[np.int64]], list[int | None]]
"""Function from a rank and times in unix nanoseconds to the steps of the rank at these times; ``None`` where it has none."""


def in_steps_of_run(durations: Durations, steps_at: StepsAt) -> Durations:
    """Return the durations with the steps that the run has recorded, by the times at which the host issued the operations.

    Operations are left out in steps of which any rank has only a part, as at the ends of what was recorded.
    """
    # One collective is in one step, even if hosts issue it at the border of two.
    known: dict[tuple[str, int], int] = {}
    steps: dict[int, list[int | None]] = {}
    for rank, one in durations.ranks.items():
        times = np.array([call.issued.created_ns for call in one.calls], dtype=np.int64)
        steps[rank] = [
            step if step is None or call.issued.key is None else known.setdefault(call.issued.key, step)
            for call, step in zip(one.calls, steps_at(rank, times), strict=True)
        ]
    whole = set.intersection(*(_whole(row) for row in steps.values()))
    ranks: dict[int, RankCalls] = {}
    found: dict[int, list[int | None]] = {}
    for rank, one in durations.ranks.items():
        kept = [at for at, step in enumerate(steps[rank]) if step is None or step in whole]
        ranks[rank] = RankCalls([one.calls[at] for at in kept], one.members, one.damaged)
        found[rank] = [steps[rank][at] for at in kept]
    return replace(durations, ranks=ranks, steps_of=lambda _: found if whole else {})


def _whole(steps: Sequence[int | None]) -> set[int]:
    """Return the steps that have about as many operations as most have."""
    counts = Counter(step for step in steps if step is not None)
    usual = float(np.median(list(counts.values()))) if counts else 0.0
    return {step for step, count in counts.items() if count >= _MOSTLY * usual}


_MOSTLY: Final = 0.9
