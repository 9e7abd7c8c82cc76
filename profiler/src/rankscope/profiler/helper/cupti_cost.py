"""Cost of the profiler that lasts between its windows.

Once CUPTI is attached to a process, it stays so, and every call of CUDA is slower: Kineto detaches it only where
``TEARDOWN_CUPTI=1`` is set. No clock on the training thread can measure that. So it is estimated from the times of steps shortly
before and after the first window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline, deviation
from rankscope.runs.records import StepRecord

BEFORE: Final = 16
"""Largest number of steps before the first window that are compared: earlier ones are slow for reasons of their own."""
LEAST_BEFORE: Final = 10
AFTER: Final = 32
"""Number of steps after the window that are compared."""
_SETTLING: Final = 3
"""Steps after the window that are left out: the host has to get ahead of its device again."""
_ERRORS: Final = 3.0
"""Standard errors that a difference must exceed; a smaller one may be noise, and counts as nothing."""
MOST: Final = 0.25
"""Largest share of a step that CUPTI may cost. Steps that are longer by more have become so for another reason."""


class CuptiCost:
    """Estimate for one rank on a device."""

    def __init__(self, baseline: StepTimeBaseline) -> None:
        self._baseline = baseline
        self.us = 0.0
        """Total cost so far."""
        self.us_per_step: float | None = None
        """Cost per step; ``None`` while too few steps are known."""
        self._times_before: list[float] | None = None
        """Times of the last steps before the first window; ``None``: there was no window yet."""
        self._times_after: list[float] = []
        self._steps = 0
        """Steps without the profiler since the first window."""

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank, after the baseline has it."""
        if self._times_before is None:
            if record.profiled:
                self._times_before = self._baseline.last_us(BEFORE)
        elif record.profiled:
            return
        elif self.us_per_step is not None:
            self.us += self.us_per_step
        else:
            self._steps += 1
            if self._steps > _SETTLING and (time_us := self._baseline.comparable_us(record)) is not None:
                self._times_after.append(time_us)
            if len(self._times_after) == AFTER:
                self.us_per_step = (
                    _difference(self._times_before, self._times_after) if len(self._times_before) >= LEAST_BEFORE else 0.0
                )
                self.us = self.us_per_step * self._steps


def _difference(before: Sequence[float], after: Sequence[float]) -> float:
    typical, since = median(before), median(after)
    more = since - typical
    # The variance of a median is pi / 2 times that of a mean.
    variances = (deviation(values, middle) ** 2 / len(values) for values, middle in ((before, typical), (after, since)))
    error = math.sqrt(math.pi / 2 * sum(variances))
    return more if _ERRORS * error < more <= MOST * typical else 0.0
