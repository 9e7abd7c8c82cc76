"""Baseline of the recent step times of a rank: the one place that knows how long its steps usually take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from statistics import median
from typing import Final, NamedTuple

from rankscope.runs.records import StepRecord

RECENT: Final = 64
"""Number of last steps that form the baseline."""
LEAST: Final = 10
"""Least number of steps from which others are judged."""
LONG_BY_DESIGN: Final = frozenset(("checkpoint", "eval"))
"""Tags of steps that are longer than others for a reason of their own."""
_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""


def deviation(values: Collection[float], middle: float) -> float:
    """Return the standard deviation about ``middle`` of what is normal among some values: a few others do not move it."""
    return _SIGMA * median(abs(value - middle) for value in values)


class TypicalTime(NamedTuple):
    """Median and standard deviation of step times in microseconds; single slow steps do not move them."""

    median_us: float
    deviation_us: float


class StepTimeBaseline:
    """Baseline that one thread updates with every step, before it passes the step on. Any thread may read it.

    Once a step had device times, the host's clock is not used: the host runs ahead of its device, and waits for it at some
    steps only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times_us = deque[float](maxlen=RECENT)
        """Times of comparable steps without the profiler."""
        self._walls_us = deque[float](maxlen=RECENT)
        """Durations on the host of all steps."""
        self.on_device = False
        """Whether the times are those of the device."""

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank."""
        with self._lock:
            self._walls_us.append(record.wall_us)
            if record.device_us is not None and not self.on_device:
                self.on_device = True
                self._times_us.clear()
            if not record.profiled and (time_us := self.comparable_us(record)) is not None:
                self._times_us.append(time_us)

    def comparable_us(self, record: StepRecord) -> float | None:
        """Return the time of a step in microseconds; ``None``: it is long by design, or its time on the device is not known."""
        if not LONG_BY_DESIGN.isdisjoint(record.tags) or (self.on_device and record.device_us is None):
            return None
        return record.step_us

    def last_us(self, count: int) -> list[float]:
        """Return the times of the last ``count`` comparable steps without the profiler, or of fewer."""
        with self._lock:
            return list(self._times_us)[-count:]

    def typical(self, least: int = LEAST) -> TypicalTime | None:
        """Return the time of a typical step without the profiler; ``None``: fewer than ``least`` are known."""
        times = self.last_us(RECENT)
        if len(times) < least:
            return None
        middle = median(times)
        return TypicalTime(middle, deviation(times, middle))

    def walls_us(self) -> list[float]:
        """Return the durations of the last steps on the host, of all kinds."""
        with self._lock:
            return list(self._walls_us)
