"""What the operating system and the garbage collector say about the training thread."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from typing import Final

GC_TAG: Final = "gc"
_FULL_COLLECTION: Final = 2
_RUN_QUEUE: Final = 1
"""Place of the waiting time in ``schedstat``."""

ThreadUse = tuple[int, int | None, int, int]
"""Of one thread since it started: CPU time and run-queue delay in nanoseconds, voluntary and involuntary context switches. The
run-queue delay is ``None`` where the kernel does not keep it. A tuple, because one is made at every step."""


class ThreadMeter:
    """Reads the counters of the thread that made it: a system call, and a second one when the thread was switched."""

    def __init__(self) -> None:
        try:
            self._schedstat: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = None
        self._switches: tuple[int, int] | None = None
        self._queued: int | None = None

    def read(self) -> ThreadUse:
        """The counters now."""
        # Also knows the CPU time, to the microsecond; asking the clock of the thread would be a system call more.
        usage = getrusage(RUSAGE_THREAD)
        switches = usage.ru_nvcsw, usage.ru_nivcsw
        # A thread that was not taken off its processor has not queued for it again.
        if switches != self._switches and self._schedstat is not None:
            self._switches = switches
            fields = os.pread(self._schedstat, 96, 0).split()
            self._queued = int(fields[_RUN_QUEUE]) if len(fields) > _RUN_QUEUE else None
        return round((usage.ru_utime + usage.ru_stime) * 1e6) * 1000, self._queued, *switches

    def close(self) -> None:
        """Give the file handle back."""
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None


class GcMeter:
    """Time that Python's garbage collector takes on one thread."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._thread = threading.get_ident()
        self._started = 0
        self.total_ns = 0
        """So far."""
        self.full = 0
        """Full collections so far."""
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._started = self._now()
        elif self._started:
            self.total_ns += self._now() - self._started
            self.full += info.get("generation") == _FULL_COLLECTION
            self._started = 0

    def close(self) -> None:
        """Stop listening."""
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
