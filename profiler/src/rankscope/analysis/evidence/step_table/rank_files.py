"""Reading of the step records of all ranks from files, several ranks in parallel."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS, RankColumns, tags_of, times_of_tags
from rankscope.analysis.evidence.step_table.recent import RecentSteps
from rankscope.analysis.evidence.step_table.step_numbers import ALL_ALIKE, StepNumbers
from rankscope.analysis.evidence.step_table.table_builder import StepTableBuilder
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepEvent
from rankscope.runs.segments import list_segments
from rankscope.runs.step_segments import ColumnRows, Rows, joined_rows, read_single_rows

_AHEAD: Final = 2
"""Ranks read ahead per thread; results that wait for the consumer take up memory."""
_KEPT_BYTES: Final = 24 * 2**20
"""Size of the array freed to raise malloc's mmap threshold; below 32 MiB, the maximum up to which malloc adapts it."""

_FEW: Final = 200
"""Maximum number of rows of a rank that are read one by one."""

_T = TypeVar("_T")


ReportProgress = Callable[[int, int], None]
"""Progress callback, called with the number of ranks read so far and the number of all ranks."""


def ignore_progress(done: int, total: int) -> None:
    """Report nothing."""


def load_ranks(
    reader: RunReader,
    attempt: int,
    ranks: Sequence[int],
    report: ReportProgress = ignore_progress,
    *,
    metrics: Collection[str] = ALL_METRICS,
    recent: RecentSteps | None = None,
) -> Iterator[tuple[int, RankColumns]]:
    """Yield each rank with its records, in order; ``metrics`` as in ``RankColumns.of``. ``reader`` counts damaged data.

    ``recent``: the steps that are read; ``None``: all.
    """

    def load(own: RunReader, rank: int) -> tuple[ColumnRows, list[StepEvent]]:
        blocks = own.step_rows(attempt, rank, last=None if recent is None else recent.most_steps)
        rows = ColumnRows(blocks if recent is None else (block[block["step"] >= recent.first_step] for block in blocks))
        # Read after the rows: a step's event is written before its row.
        return rows, list(own.events(attempt, rank))

    for rank, (rows, events) in _side_by_side(reader, load, ranks, report):
        yield rank, RankColumns.of_columns(rows, metrics).tagged(tags_of(events), times_of_tags(events))


@dataclass(frozen=True, slots=True)
class _StoredPlaces:
    """Where the values of some places are, which are given by a rank and a column each."""

    rows: RankColumns
    """Rows that were read one by one: the places ``of_rows``."""
    of_rows: NDArray[np.intp]
    of_ranks: dict[int, NDArray[np.intp]]
    """Places on each rank that was read as a whole."""


class PostponedMetrics:
    """Reader of the ``POSTPONED_METRICS`` and step starts of a table's ranks, which keeps what it has read of whole ranks.

    ``steps``: the columns of the table. ``known_metrics``: metrics that may have known values. ``numbers``: the step numbers
    that the table has instead of the recorded ones.
    """

    def __init__(
        self,
        reader: RunReader,
        attempt: int,
        steps: NDArray[np.int64],
        known_metrics: AbstractSet[str],
        numbers: StepNumbers = ALL_ALIKE,
    ) -> None:
        self._reader = reader
        self._attempt = attempt
        self._steps = steps
        self._numbers = numbers
        self.known_metrics = known_metrics
        self._parts: list[StepTableBuilder] = []
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._of_rank: dict[int, tuple[int, int]] = {}
        """Part and row of each rank that was read."""
        self._reading = threading.Lock()
        self._places: tuple[NDArray[np.int64], NDArray[np.intp], _StoredPlaces] | None = None

    def unread(self, metrics: Collection[str]) -> PostponedMetrics:
        """Return a reader of the same table that has read nothing yet, and reads only ``metrics``."""
        known_metrics = {name for name in self.known_metrics if name in metrics}
        return PostponedMetrics(self._reader, self._attempt, self._steps, known_metrics, self._numbers)

    def renumbered(self, numbers: StepNumbers) -> PostponedMetrics:
        """Return a reader of the table with other step numbers on some ranks, which has read nothing yet."""
        return PostponedMetrics(self._reader, self._attempt, self._steps, self.known_metrics, numbers)

    def matrix(self, metric: str, ranks: Sequence[int], columns: NDArray[np.intp] | slice) -> NDArray[np.float32]:
        """Return one metric, [ranks, columns]."""
        self._read(ranks)
        parts = []
        for part, rows in groupby((self._of_rank[rank] for rank in ranks), key=itemgetter(0)):
            values, chosen = self._parts[part].metric(metric), [row for _, row in rows]
            unknown = np.full((len(chosen), len(self._steps[columns])), np.nan, np.float32)
            parts.append(unknown if values is None else values[:, columns][chosen])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def at(self, metric: str, ranks: NDArray[np.int64], columns: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return one metric at places given by a rank and a column each, [places]."""
        if self._places is None or self._places[0] is not ranks or self._places[1] is not columns:
            self._places = (ranks, columns, self._places_of(ranks, columns))
        places = self._places[2]
        values = np.full(len(ranks), np.nan, np.float32)
        if metric in places.rows.metrics:
            values[places.of_rows] = places.rows.metrics[metric]
        for rank, at in places.of_ranks.items():
            part, row = self._of_rank[rank]
            if (matrix := self._parts[part].metric(metric)) is not None:
                values[at] = matrix[row, columns[at]]
        return values

    def _places_of(self, ranks: NDArray[np.int64], columns: NDArray[np.intp]) -> _StoredPlaces:
        """Read what is needed for ``at`` at these places."""
        order = np.argsort(ranks, kind="stable")
        firsts = np.flatnonzero(np.diff(ranks[order], prepend=-1))
        parts = dict(zip(ranks[order[firsts]].tolist(), np.split(order, firsts[1:]), strict=True))
        few: dict[int, Rows] = {}
        for rank, places in parts.items():
            if rank not in self._of_rank and rank not in self._numbers.changed and len(places) <= _FEW:
                unique, at = np.unique(self._steps[columns[places]], return_inverse=True)
                if (rows := self._single_rows(rank, unique)) is not None:
                    few[rank] = rows[at]
        single = RankColumns.of([joined_rows(list(few.values()))] if few else [], self.known_metrics)
        if single.damaged:
            few, single = {}, RankColumns()
        of_ranks = {rank: places for rank, places in parts.items() if rank not in few}
        self._read(list(of_ranks))
        return _StoredPlaces(single, np.concatenate([np.empty(0, np.intp), *(parts[rank] for rank in few)]), of_ranks)

    def _single_rows(self, rank: int, steps: NDArray[np.int64]) -> Rows | None:
        """Return the rows of a rank in a few ``steps``, ascending; ``None`` if they cannot be found by position."""
        try:
            paths = list_segments(rank_dir(self._reader.path, self._attempt, rank), "steps")
            return read_single_rows(paths, steps)
        except (InputError, OSError):
            return None

    def starts(self, rank: int, columns: NDArray[np.intp] | slice) -> NDArray[np.int64]:
        """Return the starts of a rank's steps in Unix nanoseconds, [columns]; 0 where there is no record."""
        if rank not in self._starts:
            rows = ColumnRows(self._reader.quiet().step_rows(self._attempt, rank))
            columns_of_rank = self._numbered(rank, RankColumns.of_columns(rows, ()))
            is_step = np.isin(columns_of_rank.step, self._steps)  # the run may have gone on
            started = np.zeros(len(self._steps), np.int64)
            started[np.searchsorted(self._steps, columns_of_rank.step[is_step])] = columns_of_rank.start[is_step]
            self._starts[rank] = started
        rank_starts: NDArray[np.int64] = self._starts[rank][columns]
        return rank_starts

    def _numbered(self, rank: int, columns: RankColumns) -> RankColumns:
        """Return the columns of a rank with the numbers that the table has."""
        changed = self._numbers.changed.get(rank)
        if changed is None:
            return columns
        return columns.joined(changed.of(columns.step))

    def _read(self, ranks: Sequence[int]) -> None:
        # Several threads may call at once.
        with self._reading:
            missing = [rank for rank in ranks if rank not in self._of_rank]
            if not missing:
                return
            reader = self._reader.quiet()  # what is damaged was counted when the table was read

            def load(own: RunReader, rank: int) -> ColumnRows:
                return ColumnRows(own.step_rows(self._attempt, rank))

            part = StepTableBuilder.of_steps(self._steps, missing)
            for rank, rows in _side_by_side(reader, load, missing, ignore_progress):
                columns = self._numbered(rank, RankColumns.of_columns(rows, self.known_metrics))
                if not np.array_equal(columns.step, self._steps):
                    columns = columns.where(np.isin(columns.step, self._steps))  # the run may have gone on
                part.add(rank, columns)
            self._parts.append(part)
            self._of_rank |= {rank: (len(self._parts) - 1, row) for row, rank in enumerate(part.ranks)}


def _side_by_side(
    reader: RunReader, load: Callable[[RunReader, int], _T], ranks: Sequence[int], report: ReportProgress
) -> Iterator[tuple[int, _T]]:
    """Yield each rank with the result of ``load``, in order.

    Each call of ``load`` gets its own reader, whose counts are added to those of ``reader``. It should only read, check and copy:
    these are few long calls without the GIL. Many short ones are slower in two threads than in one.
    """
    if not ranks:
        return
    # Freeing an array of this size makes malloc reuse memory freed later, which new pages would take longer than the work in it.
    np.empty(_KEPT_BYTES, np.uint8)

    def loaded(rank: int) -> tuple[_T, RunReader]:
        own = reader.quiet()
        return load(own, rank), own

    threads = min(len(os.sched_getaffinity(0)), len(ranks))
    with ThreadPoolExecutor(threads, thread_name_prefix="steps") as pool:
        more = iter(ranks)
        waiting = deque(pool.submit(loaded, rank) for rank in islice(more, threads * _AHEAD))
        for number, rank in enumerate(ranks, start=1):
            result, own = waiting.popleft().result()
            waiting.extend(pool.submit(loaded, next_rank) for next_rank in islice(more, 1))
            reader.take_over(own.skipped, own.unusable)
            report(number, len(ranks))
            yield rank, result
