"""The step records of all ranks from files, several ranks side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from rankscope.analysis.rank_columns import RankColumns
from rankscope.analysis.step_rows import StepRow, columns_of, columns_of_batch
from rankscope.analysis.workers import Engine
from rankscope.runs.paths import attempt_dir, rank_dir, run_file
from rankscope.runs.reader import RunReader


def read_columns(reader: RunReader, attempt: int, ranks: Sequence[int], engine: Engine) -> Iterator[tuple[int, RankColumns]]:
    """Each rank with its records, in order. What is damaged is counted by ``reader``, wherever it is read."""
    files = [run_file(reader.path)] * len(ranks)
    text_bytes = _step_bytes(reader.path, attempt, ranks)
    read = engine.map(_Read(reader.path, attempt, reader), ranks, files=files, text_bytes=text_bytes)
    for rank, (columns, skipped, unusable) in zip(ranks, read, strict=True):
        reader.take_over(skipped, unusable)
        yield rank, columns


@dataclass(frozen=True, slots=True)
class _Read:
    """Reads a rank's records; in another process with a reader of its own, whose counts come back with them."""

    run: Path
    attempt: int
    reader: RunReader | None = None

    def __call__(self, rank: int) -> tuple[RankColumns, int, list[Path]]:
        reader = self.reader or _reader(self.run)
        if self.reader is None:
            reader.skipped_lines, reader.unusable = 0, []
        columns = RankColumns.of(reader.step_blocks(self.attempt, rank, StepRow, columns_of, columns_of_batch))
        return (columns, 0, []) if self.reader else (columns, reader.skipped_lines, reader.unusable)

    def __reduce__(self) -> tuple[type[_Read], tuple[Path, int]]:
        return _Read, (self.run, self.attempt)


@lru_cache(maxsize=1)
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
