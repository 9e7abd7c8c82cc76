"""The step records of all ranks from files, several ranks side by side."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

from rankscope.analysis.rank_columns import RankColumns, tags_of
from rankscope.runs.reader import RunReader

_AHEAD: Final = 2
"""Ranks read ahead per thread: what waits to be taken fills memory."""


Report = Callable[[int, int], None]
"""Called with the number of ranks that have been read, and of all."""


def ignore(done: int, of: int) -> None:
    """Report nothing."""


def load_ranks(
    reader: RunReader, attempt: int, ranks: Sequence[int], report: Report = ignore
) -> Iterator[tuple[int, RankColumns]]:
    """Each rank with its records, in order. What is damaged is counted by ``reader``.

    Threads are enough: reading and numpy's loops let the others run.
    """
    threads = max(1, min(len(os.sched_getaffinity(0)), len(ranks)))
    with ThreadPoolExecutor(threads, thread_name_prefix="steps") as pool:
        waiting: deque[tuple[int, Future[_Loaded]]] = deque()
        more = iter(ranks)
        for rank in islice(more, threads * _AHEAD):
            waiting.append((rank, pool.submit(_load, reader, attempt, rank)))
        for done in range(1, len(ranks) + 1):
            rank, future = waiting.popleft()
            columns, skipped, unusable = future.result()
            waiting.extend((one, pool.submit(_load, reader, attempt, one)) for one in islice(more, 1))
            reader.take_over(skipped, unusable)
            report(done, len(ranks))
            yield rank, columns


_Loaded = tuple[RankColumns, int, list[Path]]


def _load(reader: RunReader, attempt: int, rank: int) -> _Loaded:
    own = copy.copy(reader)
    own.skipped_lines, own.unusable = 0, []
    columns = RankColumns.of(own.step_rows(attempt, rank))
    # After the rows: a step's event is written before its row.
    columns = columns.tagged(tags_of(own.events(attempt, rank)))
    return columns, own.skipped_lines, own.unusable
