"""Memory of the process and of its device, read every ``EVERY_STEPS`` steps because it costs more than other measures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import cuda

from rankscope.profiler.entries import Memory

EVERY_STEPS: Final = 50
EVERY_NS: Final = 5_000_000_000
"""Memory is also read when this much time has passed, so that slow steps are all measured."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_RESIDENT: Final = 1
"""Position of the resident pages in ``statm``."""

Statistics = Mapping[str, Any]
"""Statistics of the caching allocator, nested as in torch's ``memory_stats_as_nested_dict``: flattening is expensive."""


def cuda_statistics() -> Statistics | None:
    """Return the statistics of the current device; ``None`` if the script has not used one: reading would create a context."""
    if not cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    found: Statistics = cuda.memory_stats_as_nested_dict()
    return found


class MemoryMeter:
    """Reader of the memory of the process and its device."""

    def __init__(self, statistics: Callable[[], Statistics | None] = cuda_statistics) -> None:
        self._statistics = statistics
        self.due_ns = 0
        """Time from which the memory is read again, at any step."""
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    def read(self, now: int) -> Memory:
        """Return the memory at ``now``, in nanoseconds of a monotonic clock."""
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
        except Exception:  # noqa: BLE001  # another kind of allocator has no statistics; all else is still known
            found = None
        if not found:
            return None, None, None, None
        allocated, reserved = _all(found, "allocated_bytes"), _all(found, "reserved_bytes")
        return allocated.get("current"), reserved.get("current"), allocated.get("peak"), found.get("num_alloc_retries")

    def close(self) -> None:
        """Close the file handle."""
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None


def _all(found: Statistics, name: str) -> Mapping[str, int]:
    of_all: Mapping[str, int] = found.get(name, {}).get("all", {})
    return of_all
