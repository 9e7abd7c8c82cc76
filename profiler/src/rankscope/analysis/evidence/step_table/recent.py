"""The last steps of a run whose records would not fit into memory, and totals of the steps before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.runs.reader import RunReader

MOST_RECORDS: Final = 16 << 20
"""Most step records of all ranks that are read, 16,384 steps of 1,024 ranks: an analysis of them takes about 2.5 GB."""


@dataclass(frozen=True, slots=True)
class EarlierTotals:
    """Totals of the steps recorded before those of a table that holds only the last ones."""

    steps: int = 0
    records: dict[int, int] = field(default_factory=dict)
    """Number of step records per rank."""
    wall_us: dict[int, float] = field(default_factory=dict)
    """Time of these steps per rank."""


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """The last steps of a run, which are read."""

    first_step: int
    most_steps: int


def recent_steps_of(
    reader: RunReader, attempt: int, ranks: Sequence[int], most_records: int = MOST_RECORDS
) -> RecentSteps | None:
    """Return the steps of an attempt that are read, or ``None`` where all its records are."""
    reader = reader.quiet()  # what is damaged is counted when it is read
    if sum(reader.step_count(attempt, rank) for rank in ranks) <= most_records:
        return None
    most_steps = max(1, most_records // len(ranks))
    ends = (rows["step"][-1] for rank in ranks for rows in reader.step_rows(attempt, rank, last=1) if len(rows))
    return RecentSteps(int(max(ends, default=0)) - most_steps + 1, most_steps)


def earlier_totals(reader: RunReader, attempt: int, records_read: dict[int, tuple[int, int]]) -> EarlierTotals:
    """Return the totals of the records that were not read. ``records_read``: per rank, their number and their first start."""
    reader = reader.quiet()
    records = {rank: max(0, reader.step_count(attempt, rank) - count) for rank, (count, _) in records_read.items()}
    begins = {rank: _begin(reader, attempt, rank) for rank in records_read}
    wall_us = {rank: (start_ns - begins[rank]) / 1e3 for rank, (_, start_ns) in records_read.items() if begins[rank] and start_ns}
    return EarlierTotals(max(records.values(), default=0), records, wall_us)


def _begin(reader: RunReader, attempt: int, rank: int) -> int:
    """Return the start of the first step of a rank in Unix nanoseconds; 0 where it is not known."""
    return next((int(rows["start_unix_ns"][0]) for rows in reader.step_rows(attempt, rank) if len(rows)), 0)
