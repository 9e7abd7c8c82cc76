"""A clock that is not affected when the machine's clock is set, and on which all processes of one boot agree."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Identity of this boot of the machine; empty where the kernel has none."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Nanoseconds since about 1970: the machine's clock at one moment, plus the time since then by a clock that is never set.

    Processes of one boot that share ``offset_ns`` agree on it. Without ``since_boot`` it is the machine's clock.
    """

    offset_ns: int
    since_boot: bool

    def __call__(self) -> int:
        """The time now."""
        return self.offset_ns + (_since_boot_ns() if self.since_boot else time.time_ns())


def steady_clock(offset_ns: int | None = None) -> SteadyClock:
    """A clock with an offset that processes share, or with a new one."""
    if not boot_id():
        return SteadyClock(0, since_boot=False)
    return SteadyClock(time.time_ns() - _since_boot_ns() if offset_ns is None else offset_ns, since_boot=True)


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
