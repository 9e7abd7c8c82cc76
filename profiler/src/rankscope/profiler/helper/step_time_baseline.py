"""Baseline of the step times of one rank, and detection of profiled steps that deviate from it.

A helper knows only its own rank, so this detects that something happened, never its origin. Where ranks wait for each other, all
of them find the same window wrong, and their traces can be compared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Final

import msgspec

from rankscope.profiler.handover import Window
from rankscope.runs.records import StepBreakdown, StepRecord

RECENT: Final = 64
"""Number of last steps without the profiler that form the baseline, and of last profiled steps that are kept."""
LEAST: Final = 10
"""Least number of steps for a baseline."""
LONGER: Final = 1.5
"""Least factor by which a step must exceed the usual time to count as longer, however uniform the others are."""
DEVIATIONS: Final = 6
"""Least number of standard deviations above the usual time to count as longer. They are derived from the median deviation,
which single slow steps do not move."""
SLOWED: Final = 2.0
"""Assumed slowdown of steps by the profiler, until ``WINDOWS`` windows have shown the real one."""
WINDOWS: Final = 3
LONG_BY_DESIGN: Final = frozenset(("checkpoint", "eval"))
"""Tags of steps that are longer than others for a reason of their own."""
_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""


def deviation(values: Collection[float], middle: float) -> float:
    """Return the standard deviation about ``middle`` of what is normal among some values: a few others do not move it."""
    return _SIGMA * median(abs(value - middle) for value in values)


class StepTimeBaseline:
    """Baseline that one thread updates with every step and another uses to judge windows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times_us = deque[float](maxlen=RECENT)
        self._on_device = False
        """True once a step had device times. The host's clock is not used then: the host runs ahead of its device, and waits for
        it at some steps only."""
        self._profiled = deque[StepRecord](maxlen=RECENT)
        self._slowed = deque[float](maxlen=RECENT)
        """Ratio of the median step of each window to the usual time, at least 1."""

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank."""
        with self._lock:
            if record.device_us is not None and not self._on_device:
                self._on_device = True
                self._times_us.clear()
            if record.profiled:
                self._profiled.append(record)
            elif (time := self._time(record)) is not None:
                self._times_us.append(time)

    def judged(self, window: Window, breakdowns: Sequence[StepBreakdown]) -> list[StepBreakdown]:
        """Return the breakdowns of a window with ``looked_wrong`` filled in for each step."""
        steps = window.last - window.first + 1
        parts = f"the profile has {len(breakdowns)} of its window's {steps} steps" if len(breakdowns) < steps else None
        with self._lock:
            long = self._long(breakdowns)
        return [
            msgspec.structs.replace(
                row,
                looked_wrong=long.get(row.step) or ("the profile lacks a part of the step" if row.truncated else parts),
            )
            for row in breakdowns
        ]

    def _long(self, breakdowns: Sequence[StepBreakdown]) -> dict[int, str]:
        """Return the steps that took clearly longer than usual, with a description of their time."""
        if len(self._times_us) < LEAST:
            return {}
        usual = median(self._times_us)
        spread = deviation(self._times_us, usual)
        slowed = median(self._slowed) if len(self._slowed) >= WINDOWS else SLOWED
        limit = max(LONGER * usual, usual + DEVIATIONS * spread) * slowed
        records = {record.step: record for record in self._profiled}
        times: dict[int, float] = {}
        for row in breakdowns:
            if (record := records.get(row.step)) is not None:
                time = self._time(record)
            else:
                # The record has not come yet. On the host's clock the step's window is equally long.
                time = None if self._on_device else row.window_us
            if time is not None:
                times[row.step] = time
        if times and usual > 0:
            self._slowed.append(max(1.0, median(times.values()) / usual))
        others = f"steps around it {usual / 1000:.1f} ms, with the profiler {limit / 1000:.1f} at most"
        return {step: f"it took {time / 1000:.1f} ms; {others}" for step, time in times.items() if time > limit}

    def _time(self, record: StepRecord) -> float | None:
        """Return the time of a step in microseconds; ``None``: it is long by design, or its time on the device is not known."""
        if not LONG_BY_DESIGN.isdisjoint(record.tags) or (self._on_device and record.device_us is None):
            return None
        return record.step_us
