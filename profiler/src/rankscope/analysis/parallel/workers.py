"""Engines that process the ranks: in this process, in local worker processes, or on a Ray cluster (``ray_engine.py``)."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from rankscope.analysis.trace.locations import Location
from rankscope.base.errors import RankscopeError

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_PROCESS_BYTES: Final = 64 * 1024**2
"""Amount of text per process that makes a process worthwhile: starting one takes a third of a second, as does reading this."""
AHEAD: Final = 2
"""Number of further items per worker, queued or with a result not yet consumed: the first item may take longest."""


class Engine(Protocol):
    """Engine that applies a function to every rank."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, files: Sequence[Location], text_bytes: int
    ) -> Iterator[Result]:
        """Yield ``function(item)`` for each of ``items``, in their order; exceptions of ``function`` are raised here.

        ``files``: for each item a file that it is read from, so that an engine on other machines can check that the file is
        visible there. ``text_bytes``: total amount of text to read, or 0 where only this process can read it. Function, items and
        results are sent between processes, so they must be picklable, the function by its name in a module.

        Raises ``RankscopeError`` when a worker process was killed.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Engine with up to ``workers`` processes on this machine, as many as there is work for; if one suffices, this process.

    Worker processes import the caller's main module, as in ``multiprocessing``: a script that uses them needs
    ``if __name__ == "__main__":``.
    """

    workers: int = 1

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, files: Sequence[Location], text_bytes: int
    ) -> Iterator[Result]:
        """Implement ``Engine.map``."""
        del files
        useful = min(self.workers, len(items), text_bytes // WORTH_A_PROCESS_BYTES)
        return map(function, items) if useful < 2 else _in_processes(function, items, useful)


ALONE: Final[Engine] = LocalEngine()
"""Engine that works in this process alone."""


def keep_freed_memory() -> None:
    """Make this process keep freed memory for its next arrays.

    By default the C library returns large blocks to the kernel, which clears every page before reuse. This takes a tenth of the
    time of a process that constantly allocates arrays of some 100 KiB.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):  # glibc's
        c_library.mallopt(_MALLOC_TRIM_THRESHOLD, _KEPT_BYTES)
        c_library.mallopt(_MALLOC_MMAP_THRESHOLD, _MOST_FROM_HEAP_BYTES)


_MALLOC_TRIM_THRESHOLD: Final = -1
_MALLOC_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30
_MOST_FROM_HEAP_BYTES: Final = 32 << 20
"""Largest threshold that glibc accepts; larger blocks come from the kernel and return to it."""


def _in_processes(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    # Imported for much work only: imports are a large part of the time that a small job takes.
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Spawned, not forked: the calling process may have threads.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=keep_freed_memory)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(waiting) == (1 + AHEAD) * workers:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RankscopeError("a process that read ranks was killed: is memory short? Use fewer at a time (--workers)") from error
    finally:
        pool.shutdown(cancel_futures=True)
