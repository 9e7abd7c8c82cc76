"""The step records of all ranks from files, several ranks side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from rankscope.analysis.rank_columns import RankColumns
from rankscope.analysis.step_rows import StepRow, columns_of, columns_of_batch
from rankscope.runs.errors import RankscopeError
from rankscope.runs.paths import attempt_dir, rank_dir
from rankscope.runs.reader import RunReader

WORTH_A_PROCESS_BYTES: Final = 64 * 1024**2
"""Of records, for each process: one starts in a third of a second, in which about so much is read."""


def read_columns(reader: RunReader, attempt: int, ranks: Sequence[int], *, workers: int) -> Iterator[tuple[int, RankColumns]]:
    """Each rank with its records, in order. What is damaged is counted by ``reader``, wherever it is read."""
    useful = min(workers, len(ranks), _step_bytes(reader.path, attempt, ranks) // WORTH_A_PROCESS_BYTES) if workers > 1 else 1
    if useful < 2:
        for rank in ranks:
            yield rank, _columns(reader, attempt, rank)
        return
    for rank, (columns, skipped, unusable) in zip(ranks, _in_processes(reader.path, attempt, ranks, useful), strict=True):
        reader.take_over(skipped, unusable)
        yield rank, columns


def _in_processes(run: Path, attempt: int, ranks: Sequence[int], workers: int) -> Iterator[tuple[RankColumns, int, list[Path]]]:
    # Imported for large runs only: of the time that a small one takes, imports are a good part.
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    try:
        # Not forked: the process that asks may have threads.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            # A few at a time: what has been read waits here until it is taken.
            ahead = 4 * workers
            waiting = [pool.submit(_read_one, run, attempt, rank) for rank in ranks[:ahead]]
            for rank in [*ranks[ahead:], *(None for _ in waiting)]:
                yield waiting.pop(0).result()
                if rank is not None:
                    waiting.append(pool.submit(_read_one, run, attempt, rank))
    except BrokenProcessPool as error:
        raise RankscopeError("a process that read step records was killed: is memory short?") from error


def _columns(reader: RunReader, attempt: int, rank: int) -> RankColumns:
    return RankColumns.of(reader.step_blocks(attempt, rank, StepRow, columns_of, columns_of_batch))


def _read_one(run: Path, attempt: int, rank: int) -> tuple[RankColumns, int, list[Path]]:
    reader = _reader(run)
    before = reader.skipped_lines
    columns = _columns(reader, attempt, rank)
    return columns, reader.skipped_lines - before, reader.unusable


@cache
def _reader(run: Path) -> RunReader:
    """Of a process that reads many ranks: the footer of a Parquet file tells of all of them, and is read once."""
    return RunReader(run)


def _step_bytes(run: Path, attempt: int, ranks: Sequence[int]) -> int:
    """Of one rank in the middle, times the number of ranks; 0 where it cannot be looked at."""
    folders = [rank_dir(run, attempt, ranks[len(ranks) // 2]), attempt_dir(run, attempt)] if ranks else []
    try:
        rank, compacted = (sum(path.stat().st_size for path in folder.glob("steps-*")) for folder in folders)
    except (OSError, ValueError):
        return 0
    return rank * len(ranks) + compacted * _UNFOLDS


_UNFOLDS: Final = 8
"""Times, of Parquet: what decides on the number of processes need not be exact."""
