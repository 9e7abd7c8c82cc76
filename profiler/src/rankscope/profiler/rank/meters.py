"""Meters of a step: counters of the training thread, garbage collection, and memory of the process and its device."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import repeat
from os import pread
from resource import RUSAGE_THREAD, getrusage
from time import thread_time_ns
from typing import Any, Final

from torch import cuda

_FULL_COLLECTION: Final = 2
_MAX_STAMPS: Final = 2**16
"""Limit of stamps in one step, two per collection; of more, only the last are counted."""


READ_EVERY_NS: Final = 20_000_000
"""Time between two readings of a ``ThreadMeter``. A reading takes two or three system calls, 10 to 15 us between the events of a
step. Steps shorter than this share a reading, see ``helper.step_assembler``."""
_RUN_QUEUE: Final = 1
"""Position of the waiting time in ``schedstat``."""


class ThreadMeter:
    """Reader of the counters of the thread that made it: two system calls, and another if the thread was switched."""

    def __init__(self) -> None:
        self._schedstat = _own_schedstat()
        self._switches = -1
        self._queued_ns: int | None = None
        self.restarted = False
        """True if this thread has taken the place, and the identifier, of one that had ended: its counters begin anew."""

    def read(self) -> tuple[int, int, int | None, int]:
        """Return the thread's voluntary and involuntary context switches, and its nanoseconds in the run queue (``None``: the
        kernel does not keep it) and on a processor, since it started.
        """
        usage = getrusage(RUSAGE_THREAD)
        voluntary, involuntary = usage[14], usage[15]
        # Without a context switch the thread has not waited in the run queue.
        if voluntary + involuntary != self._switches and self._schedstat is not None:
            self._switches = voluntary + involuntary
            try:
                fields = pread(self._schedstat, 96, 0).split()
            except ProcessLookupError:
                self.close()
                self._schedstat, self.restarted, fields = _own_schedstat(), True, []
            self._queued_ns = int(fields[_RUN_QUEUE]) if len(fields) > _RUN_QUEUE else None
        return voluntary, involuntary, self._queued_ns, thread_time_ns()

    def close(self) -> None:
        """Close the file handle."""
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None


def _own_schedstat() -> int | None:
    with suppress(OSError):
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    return None


class GcMeter:
    """Meter of the time that Python's garbage collector takes on the thread that made this object.

    The callback of the collector consists of builtins alone. In a callback written in Python, signal handlers could run, and an
    exception of theirs (as of Ctrl-C) would be lost: the collector prints it and goes on. ``now`` must be a builtin.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._thread = threading.get_ident()
        self._started = self._total_ns = self._full = 0
        self._full_ever = _full_collections()
        self.stamps: deque[tuple[str, int, int]] = deque(maxlen=_MAX_STAMPS)
        """Stamps of collections that ``read`` has not counted yet."""

        def stamping(phase: str) -> property:
            stamps = zip(repeat(phase), iter(now, None), iter(threading.get_ident, None))
            return property(partial(next, map(self.stamps.append, stamps)))

        # The collector calls it with the phase, "start" or "stop", and a dictionary: getattr(…, "start", {…}).
        self._callback = partial(getattr, type("Stamping", (), {phase: stamping(phase) for phase in ("start", "stop")})())
        gc.callbacks.append(self._callback)

    def read(self) -> tuple[int, int]:
        """Return the nanoseconds and the number of full collections since the last call."""
        before = self._total_ns, self._full
        self._evaluate()
        return self._total_ns - before[0], self._full - before[1]

    def _evaluate(self) -> None:
        collected = False
        while self.stamps:
            phase, at, thread = self.stamps.popleft()
            if thread != self._thread:
                continue
            if phase == "start":
                self._started = at
            elif self._started:
                self._total_ns += at - self._started
                self._started = 0
                collected = True
        ever = _full_collections()
        # With several threads, attributing full collections to this one is accurate enough.
        self._full += collected and ever - self._full_ever
        self._full_ever = ever

    def close(self) -> None:
        """Remove the callback from the collector."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)


def _full_collections() -> int:
    return int(gc.get_stats()[_FULL_COLLECTION]["collections"])


EVERY_STEPS: Final = 50
EVERY_NS: Final = 5_000_000_000
"""Memory is also read when this much time has passed, so that slow steps are all measured."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_RESIDENT: Final = 1
"""Position of the resident pages in ``statm``."""

Statistics = Mapping[str, Any]
"""Statistics of the caching allocator, nested as in torch's ``memory_stats_as_nested_dict``: flattening is expensive."""


def _cuda_statistics(device: int | None) -> Statistics | None:
    """Return the statistics of ``device``; ``None`` if the script has not used CUDA: reading would create a context."""
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    statistics: Statistics = cuda.memory_stats_as_nested_dict(device)
    return statistics


class MemoryMeter:
    """Reader of the memory of the process and its device."""

    def __init__(self) -> None:
        self.gpu: int | None = None
        """CUDA device whose memory is read; ``None``: the current one."""
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    def read(self) -> tuple[int | None, ...]:
        """Return resident, allocated and reserved bytes, the peak of those allocated, and the retries of the allocator."""
        return self._resident(), *self._device()

    def _resident(self) -> int | None:
        if self._statm is None:
            return None
        fields = os.pread(self._statm, 96, 0).split()
        return int(fields[_RESIDENT]) * _PAGE_BYTES if len(fields) > _RESIDENT else None

    def _device(self) -> tuple[int | None, int | None, int | None, int | None]:
        try:
            statistics = _cuda_statistics(self.gpu)
        except Exception:  # noqa: BLE001  # another kind of allocator has no statistics; all else is still known
            statistics = None
        if not statistics:
            return None, None, None, None
        allocated, reserved = _all(statistics, "allocated_bytes"), _all(statistics, "reserved_bytes")
        return allocated.get("current"), reserved.get("current"), allocated.get("peak"), statistics.get("num_alloc_retries")

    def close(self) -> None:
        """Close the file handle."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None


def _all(statistics: Statistics, name: str) -> Mapping[str, int]:
    of_all: Mapping[str, int] = statistics.get(name, {}).get("all", {})
    return of_all
