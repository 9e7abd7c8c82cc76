"""Detection of profiled steps that deviate from the step times of their rank.

A helper knows only its own rank, so this detects that something happened, never its origin. Where ranks wait for each other, all
of them find the same window wrong, and their traces can be compared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from rankscope.profiler.handover import ProfiledWindow
from rankscope.profiler.helper.step_time_baseline import RECENT, StepTimeBaseline
from rankscope.runs.records import StepBreakdown, StepRecord

LONGER: Final = 1.5
"""Least factor by which a step must exceed the typical time to count as longer, however uniform the others are."""
DEVIATIONS: Final = 6
"""Least number of standard deviations above the typical time to count as longer."""
SLOWED: Final = 2.0
"""Assumed slowdown of steps by the profiler, until ``WINDOWS`` windows have shown the real one."""
WINDOWS: Final = 3


class WindowJudge:
    """Judge of windows: one thread adds the steps of the rank, another one judges its windows."""

    def __init__(self, baseline: StepTimeBaseline) -> None:
        self._baseline = baseline
        self._lock = threading.Lock()
        self._profiled = deque[StepRecord](maxlen=RECENT)
        self._slowed = deque[float](maxlen=RECENT)
        """Ratio of the median step of each window to the typical time, at least 1."""

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank, after the baseline has it."""
        if record.profiled:
            with self._lock:
                self._profiled.append(record)

    def judge(self, window: ProfiledWindow, breakdowns: Sequence[StepBreakdown]) -> list[StepBreakdown]:
        """Return the breakdowns of a window with ``looked_wrong`` filled in for each step."""
        steps = window.last - window.first + 1
        parts = f"the profile has {len(breakdowns)} of its window's {steps} steps" if len(breakdowns) < steps else None
        long = self._long(breakdowns)
        return [
            msgspec.structs.replace(
                row,
                looked_wrong=long.get(row.step) or ("the profile lacks a part of the step" if row.truncated else parts),
            )
            for row in breakdowns
        ]

    def _long(self, breakdowns: Sequence[StepBreakdown]) -> dict[int, str]:
        """Return the steps that took clearly longer than a typical one, with a description of their time."""
        typical = self._baseline.typical()
        if typical is None:
            return {}
        slowed = median(self._slowed) if len(self._slowed) >= WINDOWS else SLOWED
        limit = max(LONGER * typical.median_us, typical.median_us + DEVIATIONS * typical.deviation_us) * slowed
        with self._lock:
            records = {record.step: record for record in self._profiled}
        times: dict[int, float] = {}
        for row in breakdowns:
            if (record := records.get(row.step)) is not None:
                time = self._baseline.comparable_us(record)
            else:
                # The record has not come yet. On the host's clock the step's window is equally long.
                time = None if self._baseline.on_device else row.window_us
            if time is not None:
                times[row.step] = time
        if times and typical.median_us > 0:
            self._slowed.append(max(1.0, median(times.values()) / typical.median_us))
        others = f"steps around it {typical.median_us / 1000:.1f} ms, with the profiler {limit / 1000:.1f} at most"
        return {step: f"it took {time / 1000:.1f} ms; {others}" for step, time in times.items() if time > limit}
