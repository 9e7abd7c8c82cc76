"""What the steps of one rank usually take, and what looked wrong in a profiled window beside that.

A helper knows its own rank alone. So this says that something happened, never who made it happen: where ranks wait for each other
all of them find the same window wrong, and their traces can be compared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from rankscope.profiler.handover import Window
from rankscope.runs.records import StepBreakdown, StepRecord

RECENT: Final = 64
"""Steps without the profiler, the last ones, that say what is usual; and profiled ones that are remembered."""
LEAST: Final = 10
"""With fewer of them nothing is."""
LONGER: Final = 1.5
"""By less than this factor no step is clearly longer, however even the others are."""
DEVIATIONS: Final = 6
"""Nor by less than so many standard deviations, taken from the median deviation, which single slow steps do not move."""
_SIGMA: Final = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""
SLOWED: Final = 2.0
"""So much the profiler may slow steps, until ``WINDOWS`` windows have shown how much it does."""
WINDOWS: Final = 3
_LONG_BY_DESIGN: Final = frozenset(("checkpoint", "eval"))


class Usual:
    """Told of every step on one thread and asked about windows on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._walls_us = deque[float](maxlen=RECENT)
        self._profiled = deque[StepRecord](maxlen=RECENT)
        self._slowed = deque[float](maxlen=RECENT)
        """How much longer than usual the middle step of each window was."""

    def add(self, record: StepRecord) -> None:
        """The rank has done a step."""
        with self._lock:
            if record.profiled:
                self._profiled.append(record)
            elif _LONG_BY_DESIGN.isdisjoint(record.tags):
                self._walls_us.append(record.wall_us)

    def judged(self, window: Window, breakdowns: Sequence[StepBreakdown]) -> list[StepBreakdown]:
        """The breakdowns of a window, with what looked wrong in each step."""
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
        """The steps that took clearly longer than usual, and how long."""
        if len(self._walls_us) < LEAST:
            return {}
        usual = median(self._walls_us)
        spread = _SIGMA * median(abs(wall - usual) for wall in self._walls_us)
        slowed = median(self._slowed) if len(self._slowed) >= WINDOWS else SLOWED
        limit = max(LONGER * usual, usual + DEVIATIONS * spread) * slowed
        records = {record.step: record for record in self._profiled}
        walls: dict[int, float] = {}
        for row in breakdowns:
            # On a device the record may still wait for its times there; the window of the step is as long.
            record = records.get(row.step)
            if record is None or _LONG_BY_DESIGN.isdisjoint(record.tags):
                walls[row.step] = row.window_us if record is None else record.wall_us
        if walls and usual > 0:
            self._slowed.append(max(1.0, median(walls.values()) / usual))
        others = f"steps around it {usual / 1000:.1f} ms, with the profiler {limit / 1000:.1f} at most"
        return {step: f"it took {wall / 1000:.1f} ms; {others}" for step, wall in walls.items() if wall > limit}
