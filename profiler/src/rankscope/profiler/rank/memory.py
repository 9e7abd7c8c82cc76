"""Memory of the process and of its device, at every so manieth step: reading it costs more than a step's other measures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import cuda

from rankscope.profiler.entries import Memory

EVERY_STEPS: Final = 50
EVERY_NS: Final = 5_000_000_000
"""Also when so much time has passed: of slow steps every one counts."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_RESIDENT: Final = 1
"""Place of the resident pages in ``statm``."""

Statistics = Mapping[str, Any]
"""Of the caching allocator, nested as torch's own ``memory_stats_as_nested_dict``: not flattened is far cheaper."""


def cuda_statistics() -> Statistics | None:
    """Those of the current device; ``None`` where the script has not been on one: asking would create a context."""
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    found: Statistics = cuda.memory_stats_as_nested_dict()
    return found


class MemoryMeter:
    """Reads the memory when it is time to."""

    def __init__(self, statistics: Callable[[], Statistics | None] = cuda_statistics) -> None:
        self._statistics = statistics
        self.due_ns = 0
        """Read it now, whatever the number of the step."""
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    def read(self, now: int) -> Memory:
        """The memory at ``now``, in nanoseconds of a monotonic clock."""
        self.due_ns = now + EVERY_NS
        return Memory(self._resident(), *self._device())

    def _resident(self) -> int | None:
        if self._statm is None:
            return None
        fields = os.pread(self._statm, 96, 0).split()
        return int(fields[_RESIDENT]) * _PAGE_BYTES if len(fields) > _RESIDENT else None

    def _device(self) -> tuple[int | None, int | None, int | None, int | None]:
        try:
            found = self._statistics()
        except Exception:  # noqa: BLE001  # an allocator of another kind keeps none; everything else is still known
            found = None
        if not found:
            return None, None, None, None
        allocated, reserved = _all(found, "allocated_bytes"), _all(found, "reserved_bytes")
        return allocated.get("current"), reserved.get("current"), allocated.get("peak"), found.get("num_alloc_retries")

    def close(self) -> None:
        """Give the file handle back."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None


def _all(found: Statistics, name: str) -> Mapping[str, int]:
    of_all: Mapping[str, int] = found.get(name, {}).get("all", {})
    return of_all
