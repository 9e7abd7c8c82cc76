"""A clock that nobody sets: the schedule of what waits must not move when the machine's clock does."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What tells this start of the machine from others; empty where nobody knows, then the machine's clock is all there is."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Nanoseconds since about 1970: what the machine's clock said once, and the time since then by one that only goes forward.

    All processes that were started by one boot of the machine, and know the same ``offset_ns``, agree on it.
    """

    offset_ns: int
    since_boot: bool

    def __call__(self) -> int:
        """The time by now."""
        return self.offset_ns + (_since_boot_ns() if self.since_boot else time.time_ns())


def steady_clock(offset_ns: int | None = None) -> SteadyClock:
    """A clock with the offset that was agreed on, or a new one."""
    if not boot_id():
        return SteadyClock(0, since_boot=False)
    return SteadyClock(time.time_ns() - _since_boot_ns() if offset_ns is None else offset_ns, since_boot=True)


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
