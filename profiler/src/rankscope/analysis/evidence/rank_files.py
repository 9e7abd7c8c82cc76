"""Reading of the step records of all ranks from files, several ranks in parallel."""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.rank_columns import ALL_METRICS, METER_METRICS, RankColumns, meters_of, tags_of, times_of_tags
from rankscope.analysis.evidence.recent import Recent
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.segments import list_segments
from rankscope.runs.step_segments import read_single_rows

_AHEAD: Final = 2
"""Ranks read ahead per thread; results that wait for the consumer take up memory."""
_KEPT_BYTES: Final = 24 * 2**20
"""Size of the array freed to raise malloc's mmap threshold; below 32 MiB, the maximum up to which malloc adapts it."""

_FEW: Final = 200
"""Maximum number of rows of a rank that are read one by one."""

_T = TypeVar("_T")


Report = Callable[[int, int], None]
"""Progress callback, called with the number of ranks read so far and the number of all ranks."""


def ignore(done: int, of: int) -> None:
    """Report nothing."""


def load_ranks(
    reader: RunReader,
    attempt: int,
    ranks: Sequence[int],
    report: Report = ignore,
    *,
    metrics: Collection[str] = ALL_METRICS,
    recent: Recent | None = None,
) -> Iterator[tuple[int, RankColumns]]:
    """Yield each rank with its records, in order; ``metrics`` as in ``RankColumns.of``. ``reader`` counts damaged data.

    ``recent``: the steps that are read; ``None``: all.
    """

    def load(own: RunReader, rank: int) -> RankColumns:
        rows = own.step_rows(attempt, rank)
        if recent is not None:
            last = own.step_rows(attempt, rank, last=recent.most_steps)
            rows = (block[block["step"] >= recent.first_step] for block in last)
        columns = RankColumns.of(rows, metrics)
        # Read after the rows: a step's event is written before its row.
        events = list(own.events(attempt, rank))
        return columns.tagged(tags_of(events), times_of_tags(events))

    return _side_by_side(reader, load, ranks, report)


class Meters:
    """Lazy cache of the ``METER_METRICS`` and step starts of a table's ranks.

    ``steps``: the columns of the table. ``known``: metrics with any known value.
    """

    def __init__(self, reader: RunReader, attempt: int, steps: NDArray[np.int64], known: Collection[str]) -> None:
        self._reader = reader
        self._attempt = attempt
        self._steps = steps
        self.known = known
        self._of_rank: dict[int, tuple[NDArray[np.float32], NDArray[np.int64]]] = {}
        self._reading = threading.Lock()
        self._places: tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.float32]] | None = None

    def matrix(self, metric: str, ranks: Sequence[int], columns: NDArray[np.intp] | slice) -> NDArray[np.float32]:
        """Return one metric, [ranks, columns]."""
        self._read(ranks)
        place = METER_METRICS.index(metric)
        return np.stack([self._of_rank[rank][0][place, columns] for rank in ranks])

    def at(self, metric: str, ranks: NDArray[np.int64], columns: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return one metric at places given by a rank and a column each, [places]."""
        if self._places is None or self._places[0] is not ranks or self._places[1] is not columns:
            self._places = (ranks, columns, self._at(ranks, columns))
        found: NDArray[np.float32] = self._places[2][METER_METRICS.index(metric)]
        return found

    def _at(self, ranks: NDArray[np.int64], columns: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return ``METER_METRICS`` at places given by a rank and a column each, [metrics, places]."""
        found = np.empty((len(METER_METRICS), len(ranks)), np.float32)
        order = np.argsort(ranks, kind="stable")
        firsts = np.flatnonzero(np.diff(ranks[order], prepend=-1))
        parts = dict(zip(ranks[order[firsts]].tolist(), np.split(order, firsts[1:]), strict=True))
        whole = [rank for rank, places in parts.items() if len(places) > _FEW]
        for rank, places in parts.items():
            few = None if rank in self._of_rank or len(places) > _FEW else self._few(rank, self._steps[columns[places]])
            if few is not None:
                found[:, places] = few
            else:
                whole.append(rank)
        self._read(whole)
        for rank in whole:
            found[:, parts[rank]] = self._of_rank[rank][0][:, columns[parts[rank]]]
        return found

    def _few(self, rank: int, steps: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return ``METER_METRICS`` [metrics, steps] of a rank in a few steps; ``None`` if rows cannot be found by position."""
        unique, places = np.unique(steps, return_inverse=True)
        try:
            paths = list_segments(rank_dir(self._reader.path, self._attempt, rank), "steps")
            rows = read_single_rows(paths, unique)
        except (InputError, OSError):
            return None
        return None if rows is None else meters_of([rows])[2][:, places]

    def starts(self, rank: int, columns: NDArray[np.intp] | slice) -> NDArray[np.int64]:
        """Return the starts of a rank's steps in Unix nanoseconds, [columns]; 0 where there is no record."""
        self._read([rank])
        return self._of_rank[rank][1][columns]

    def _read(self, ranks: Sequence[int]) -> None:
        # Several threads may call at once.
        with self._reading:
            missing = [rank for rank in ranks if rank not in self._of_rank]
            reader = copy.copy(self._reader)
            reader.skipped = {}  # those of steps were counted when the table was read
            for rank, found in _side_by_side(reader, self._load, missing, ignore):
                self._of_rank[rank] = found

    def _load(self, own: RunReader, rank: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return ``METER_METRICS`` [metrics, steps] of a rank, and its starts [steps]."""
        steps, starts, values = meters_of(own.step_rows(self._attempt, rank))
        found = np.full((len(METER_METRICS), len(self._steps)), np.nan, np.float32)
        began = np.zeros(len(self._steps), np.int64)
        at = np.searchsorted(self._steps, steps)
        here = at < len(self._steps)  # the run may have gone on
        here[here] = self._steps[at[here]] == steps[here]
        found[:, at[here]], began[at[here]] = values[:, here], starts[here]
        return found, began


def _side_by_side(
    reader: RunReader, load: Callable[[RunReader, int], _T], ranks: Sequence[int], report: Report
) -> Iterator[tuple[int, _T]]:
    """Yield each rank with the result of ``load``, in order.

    Each call of ``load`` gets its own reader, whose counts are added to those of ``reader``. Threads are enough, because reading
    and numpy's loops release the GIL.
    """
    if not ranks:
        return
    # Freeing an array of this size makes malloc reuse memory freed later. Otherwise the kernel clears new pages for every array,
    # which takes a third of the time.
    np.empty(_KEPT_BYTES, np.uint8)

    def loaded(rank: int) -> tuple[_T, RunReader]:
        own = copy.copy(reader)
        own.skipped, own.unusable = {}, []
        return load(own, rank), own

    threads = min(len(os.sched_getaffinity(0)), len(ranks))
    with ThreadPoolExecutor(threads, thread_name_prefix="steps") as pool:
        more = iter(ranks)
        waiting = deque(pool.submit(loaded, rank) for rank in islice(more, threads * _AHEAD))
        for done, rank in enumerate(ranks, start=1):
            result, own = waiting.popleft().result()
            waiting.extend(pool.submit(loaded, one) for one in islice(more, 1))
            reader.take_over(own.skipped, own.unusable)
            report(done, len(ranks))
            yield rank, result
