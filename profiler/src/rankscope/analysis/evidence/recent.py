"""The last steps of a run whose records would not fit into memory, and totals of the steps before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.segments import list_segments
from rankscope.runs.step_segments import Rows, Segment

MOST_RECORDS: Final = 16 << 20
"""Most step records of all ranks that are read, 16,384 steps of 1,024 ranks: an analysis of them takes about 2.5 GB."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Totals of the steps recorded before those of a table that holds only the last ones."""

    steps: int = 0
    records: dict[int, int] = field(default_factory=dict)
    """Number of step records per rank."""
    wall_us: dict[int, float] = field(default_factory=dict)
    """Time of these steps per rank."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Part of a run that is read."""

    first_step: int
    most_steps: int


def recent_part(reader: RunReader, attempt: int, ranks: Sequence[int], most_records: int = MOST_RECORDS) -> Recent | None:
    """Return the part of an attempt that is read, or ``None`` where all its records are."""
    if sum(_rows(reader, attempt, rank) for rank in ranks) <= most_records:
        return None
    most_steps = max(1, most_records // len(ranks))
    newest = max((rows["step"][-1] for rank in ranks if (rows := _end(reader, attempt, rank)) is not None), default=0)
    return Recent(int(newest) - most_steps + 1, most_steps)


def earlier_part(reader: RunReader, attempt: int, kept: dict[int, tuple[int, int]]) -> Earlier:
    """Return the totals of the records that were not read; ``kept``: per rank the number of those read, and their first start."""
    records = {rank: max(0, _rows(reader, attempt, rank) - count) for rank, (count, _) in kept.items()}
    begins = {rank: _begin(reader, attempt, rank) for rank in kept}
    wall_us = {rank: (start_ns - begins[rank]) / 1e3 for rank, (_, start_ns) in kept.items() if begins[rank] and start_ns}
    return Earlier(max(records.values(), default=0), records, wall_us)


def _segments(reader: RunReader, attempt: int, rank: int) -> list[Segment]:
    try:
        paths = list_segments(rank_dir(reader.path, attempt, rank), "steps")
    except (InputError, OSError):
        return []  # reported when the rank is read
    return [Segment(path) for path in paths]


def _rows(reader: RunReader, attempt: int, rank: int) -> int:
    """Return the number of rows of a rank; 0 for segments that cannot be read."""
    count = 0
    for segment in _segments(reader, attempt, rank):
        try:
            segment.skip()
        except (InputError, OSError):
            continue
        count += segment.rows_read
    return count


def _end(reader: RunReader, attempt: int, rank: int) -> Rows | None:
    """Return the last row of a rank."""
    for segment in reversed(_segments(reader, attempt, rank)):
        try:
            segment.skip(keep=1)
            for rows in segment.read():
                if len(rows):
                    return rows
        except (InputError, OSError):
            continue
    return None


def _begin(reader: RunReader, attempt: int, rank: int) -> int:
    """Return the start of the first step of a rank in Unix nanoseconds; 0 where it is not known."""
    for segment in _segments(reader, attempt, rank):
        try:
            for rows in segment.read():
                if len(rows):
                    return int(rows["start_unix_ns"][0])
        except (InputError, OSError):
            continue
    return 0
