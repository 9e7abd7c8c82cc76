"""Times of the monotonic clock by the present wall clock, which may be set while the exporter runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_STEP_S: Final = 1.0
"""A difference between the clocks that changes by less is noise."""


class WallClock:
    """Converter of monotonic times to unix times; a time keeps its value until the wall clock is set."""

    def __init__(self, now: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._monotonic = monotonic
        self._boot_unix_s = now() - monotonic()

    def boot_unix_s(self) -> float:
        """Return the unix time at which the monotonic clock was 0."""
        boot_unix_s = self._now() - self._monotonic()
        if abs(boot_unix_s - self._boot_unix_s) > _STEP_S:
            self._boot_unix_s = boot_unix_s
        return self._boot_unix_s

    def unix_s(self, monotonic_s: float) -> float:
        """Return the unix time of a monotonic time."""
        return round(self.boot_unix_s() + monotonic_s, 3)
