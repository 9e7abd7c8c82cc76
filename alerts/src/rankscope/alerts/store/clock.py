"""A clock that is not affected when the machine's clock is set, and on which all processes of one boot agree."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rankscope.base.process import boot_id


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Nanoseconds since about 1970: the wall clock at one moment, plus the boot-time clock since then.

    Processes of one boot that share ``offset_ns`` agree on the time. Without ``since_boot`` it is the wall clock.
    """

    offset_ns: int
    since_boot: bool

    def __call__(self) -> int:
        """Return the current time."""
        return self.offset_ns + (_since_boot_ns() if self.since_boot else time.time_ns())


def steady_clock(offset_ns: int | None = None) -> SteadyClock:
    """Create a clock with a shared ``offset_ns``, or with a new offset."""
    if not boot_id():
        return SteadyClock(0, since_boot=False)
    return SteadyClock(time.time_ns() - _since_boot_ns() if offset_ns is None else offset_ns, since_boot=True)


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
