"""Pace of a rank and the recorder's cost to it, as its helper reports them."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median
from typing import Final

from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.plan import RankReport
from rankscope.runs.records import RankInfo, StepRecord

_RECENT: Final = 64
_LEAST: Final = 5
"""Least number of steps without the profiler for a median."""


class StepPace:
    """Sums over the steps of one rank, beside the baseline of their times."""

    def __init__(self, baseline: StepTimeBaseline) -> None:
        self._baseline = baseline
        self.last_step: int | None = None
        self._trained_us = 0.0
        self._steps = 0
        self._slowed_us = 0.0
        self._slowed_total_us = 0.0
        self._window_us: float | None = None
        self._windows = 0
        self._windows_cost_us = 0.0
        self._always_on: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank, after the baseline has it."""
        self.last_step = record.step
        self._steps += 1
        self._trained_us += record.wall_us
        if not record.profiled:
            return
        time_us, typical = self._baseline.comparable_us(record), self._baseline.typical(1)
        if time_us is not None and typical is not None:
            # The profiler slows a step by at most its typical time; any more has another cause.
            slowed = min(max(0.0, time_us - typical.median_us), typical.median_us)
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
        walls_us, step_us = self._baseline.walls_us(), self._step_us()
        return RankReport(
            rank=info.rank,
            unix_ns=unix_ns,
            clock=info.clock_name[:256],
            step=self.last_step,
            step_us=None if step_us is None else max(1e-3, step_us),
            pace_us=None if step_us is None else max(1e-3, fmean(walls_us)),
            always_on_us=self._recent_cost(),
            window_us=self._window_us,
            spent_us=max(cost, windows_cost) + self._slowed_total_us,
            trained_us=self._trained_us,
        )

    def _step_us(self) -> float | None:
        """Return the time of a typical step, also where every step is long by design; ``None``: there were too few."""
        typical, walls_us = self._baseline.typical(_LEAST), self._baseline.walls_us()
        if typical is not None:
            return typical.median_us
        return median(walls_us) if len(walls_us) >= _LEAST and not self._baseline.on_device else None

    def _recent_cost(self) -> float:
        """Return the always-on cost per step over recent reports, so that a slow start does not count."""
        (steps, cost), (steps_now, cost_now) = self._always_on[0], self._always_on[-1]
        if steps_now == steps:
            return cost_now / max(1, steps_now)
        return max(0.0, cost_now - cost) / (steps_now - steps)
