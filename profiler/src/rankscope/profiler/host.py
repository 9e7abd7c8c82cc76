"""What the operating system and the garbage collector say about the training thread."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from os import pread
from resource import RUSAGE_THREAD, getrusage
from typing import Final

from rankscope.profiler.raw import Reading

GC_TAG: Final = "gc"
_FULL_COLLECTION: Final = 2


class ThreadMeter:
    """Reads the counters of the thread that made it: a system call, and a second one when the thread was switched."""

    def __init__(self) -> None:
        try:
            self._schedstat: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = None
        self._switches = -1
        self._queued: bytes | None = None

    def read(self) -> Reading:
        """The counters now; what they mean is worked out elsewhere."""
        # Also knows the CPU time, to the microsecond; asking the clock of the thread would be a system call more.
        usage = getrusage(RUSAGE_THREAD)
        voluntary, involuntary = usage[14], usage[15]
        # A thread that was not taken off its processor has not queued for it again.
        if voluntary + involuntary != self._switches and self._schedstat is not None:
            self._switches = voluntary + involuntary
            self._queued = pread(self._schedstat, 96, 0)
        return usage[0], usage[1], voluntary, involuntary, self._queued

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
