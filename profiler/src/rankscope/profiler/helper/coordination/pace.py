"""Pace of a rank and the recorder's cost to it, as its helper reports them."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median
from typing import Final

from rankscope.profiler.plan import RankReport
from rankscope.runs.records import RankInfo, StepRecord

_RECENT: Final = 64
_LEAST: Final = 5
"""Least number of steps without the profiler for a median."""


class Pace:
    """Sums over the steps of one rank, and the median of the recent ones."""

    def __init__(self) -> None:
        self.last_step: int | None = None
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._wall_times: deque[float] = deque(maxlen=_RECENT)
        self._on_device = False
        """True if any step had times on the device; those without are then left out, because its host runs ahead."""
        self._trained_us = 0.0
        self._steps = 0
        self._slowed_us = 0.0
        self._slowed_total_us = 0.0
        self._window_us: float | None = None
        self._windows = 0
        self._windows_cost_us = 0.0
        self._always_on: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank."""
        self.last_step = record.step
        self._steps += 1
        self._trained_us += record.wall_us
        self._wall_times.append(record.wall_us)
        self._on_device |= record.device_us is not None
        if self._on_device and record.device_us is None:
            return
        if not record.profiled:
            self._times.append(record.step_us)
        elif self._times:
            # The profiler slows a step by at most its usual time; any more has another cause, such as a checkpoint.
            usual = median(self._times)
            slowed = min(max(0.0, record.step_us - usual), usual)
            self._slowed_us += slowed
            self._slowed_total_us += slowed

    def report(self, info: RankInfo, unix_ns: int) -> RankReport | None:
        """Return the report at ``unix_ns``; ``None`` before the first step."""
        if self.last_step is None:
            return None
        cost, windows_cost = info.recorder_cost_us or 0.0, info.window_cost_us or 0.0
        if info.windows > self._windows:
            spent = windows_cost - self._windows_cost_us + self._slowed_us
            self._window_us = spent / (info.windows - self._windows)
            self._windows, self._windows_cost_us, self._slowed_us = info.windows, windows_cost, 0.0
        if not self._always_on or self._always_on[-1][0] < self._steps:
            self._always_on.append((self._steps, max(0.0, cost - windows_cost)))
        known = len(self._times) >= _LEAST
        return RankReport(
            rank=info.rank,
            unix_ns=unix_ns,
            clock=info.clock_name[:256],
            step=self.last_step,
            step_us=max(1e-3, median(self._times)) if known else None,
            pace_us=max(1e-3, fmean(self._wall_times)) if known else None,
            always_on_us=self._recent_cost(),
            window_us=self._window_us,
            spent_us=max(cost, windows_cost) + self._slowed_total_us,
            trained_us=self._trained_us,
        )

    def _recent_cost(self) -> float:
        """Return the always-on cost per step over recent reports, so that a slow start does not count."""
        (steps, cost), (steps_now, cost_now) = self._always_on[0], self._always_on[-1]
        if steps_now == steps:
            return cost_now / max(1, steps_now)
        return max(0.0, cost_now - cost) / (steps_now - steps)
