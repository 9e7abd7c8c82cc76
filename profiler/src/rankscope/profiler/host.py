"""What the operating system and the garbage collector say about the training thread."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GC_TAG: Final = "gc"
_FULL_COLLECTION: Final = 2


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """Counters of one thread since it started; ``run_queue_ns`` is ``None`` where the kernel does not keep it."""

    cpu_ns: int
    run_queue_ns: int | None
    voluntary: int
    involuntary: int


class ThreadMeter:
    """Reads the counters of the thread that made it; about three microseconds a reading."""

    def __init__(self) -> None:
        try:
            self._schedstat: int | None = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = None

    def read(self) -> ThreadUse:
        """The counters now."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return ThreadUse(time.thread_time_ns(), self._run_queue(), usage.ru_nvcsw, usage.ru_nivcsw)

    def _run_queue(self) -> int | None:
        if self._schedstat is None:
            return None
        fields = os.pread(self._schedstat, 96, 0).split()
        return int(fields[1]) if len(fields) > 1 else None

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
        self._total = 0
        self._full = False
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._started = self._now()
        elif self._started:
            self._total += self._now() - self._started
            self._full |= info.get("generation") == _FULL_COLLECTION
            self._started = 0

    def take(self) -> tuple[int, bool]:
        """Nanoseconds since the last call, and whether a full collection was among them."""
        total, full = self._total, self._full
        self._total, self._full = 0, False
        return total, full

    def close(self) -> None:
        """Stop listening."""
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
