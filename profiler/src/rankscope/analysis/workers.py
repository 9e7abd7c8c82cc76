"""Who works through the ranks: this process, processes beside it, or the nodes of a Ray cluster (``ray_engine.py``)."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from rankscope.analysis.locations import Location
from rankscope.base.errors import RankscopeError

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_PROCESS_BYTES: Final = 64 * 1024**2
"""Of text, for each process: one starts in a third of a second, in which so much is read."""
AHEAD: Final = 2
"""Times as many items as are worked on at a time may wait to be taken: the first may well take longest."""


class Engine(Protocol):
    """Does the same to every rank."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, files: Sequence[Location], text_bytes: int
    ) -> Iterator[Result]:
        """``function(item)`` for each of ``items``, in their order; what it raises is raised here.

        ``files``: for each item a file that it is read from, so that an engine that works elsewhere can tell whether that file is
        there; ``text_bytes``: how much there is to read in all, or 0 where only this process can read it. Function, items and
        results go between processes: they can be pickled, the function by its name in a module.

        Raises ``RankscopeError`` when a process that worked on it was killed.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Up to ``workers`` processes on this machine, as many as there is work for; this one alone where that is one.

    Processes import the caller's main module, as those of ``multiprocessing`` do: a script that asks for them needs
    ``if __name__ == "__main__":``.
    """

    workers: int = 1

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, files: Sequence[Location], text_bytes: int
    ) -> Iterator[Result]:
        """See ``Engine``."""
        del files
        useful = min(self.workers, len(items), text_bytes // WORTH_A_PROCESS_BYTES)
        return map(function, items) if useful < 2 else _in_processes(function, items, useful)


ALONE: Final[Engine] = LocalEngine()
"""This process alone."""


def keep_freed_memory() -> None:
    """Let this process keep what it frees, for its next arrays.

    The C library would give large blocks back to the kernel, which clears every page before it hands it out again: for a process
    that makes arrays of some 100 KiB all the time, that is a tenth of its time.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):  # glibc's
        c_library.mallopt(_MALLOC_TRIM_THRESHOLD, _KEPT_BYTES)
        c_library.mallopt(_MALLOC_MMAP_THRESHOLD, _MOST_FROM_HEAP_BYTES)


_MALLOC_TRIM_THRESHOLD: Final = -1
_MALLOC_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30
_MOST_FROM_HEAP_BYTES: Final = 32 << 20
"""The most that glibc takes for it; larger blocks come from the kernel and go back there."""


def _in_processes(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    # Imported for much work only: of the time that a small one takes, imports are a good part.
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not forked: the process that asks may have threads.
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
