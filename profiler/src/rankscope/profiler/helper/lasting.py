"""Cost of the profiler that lasts between its windows.

Once CUPTI is attached to a process, it stays so, and every call of CUDA is slower: Kineto detaches it only where
``TEARDOWN_CUPTI=1`` is set. No clock on the training thread can measure that. So it is estimated from the times of steps shortly
before and after the first window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

from rankscope.profiler.helper.step_time_baseline import LONG_BY_DESIGN, deviation
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


class LastingCost:
    """Estimate for one rank on a device."""

    def __init__(self) -> None:
        self.us = 0.0
        """Total cost so far."""
        self.us_per_step: float | None = None
        """Cost per step; ``None`` while too few steps are known."""
        self._before: deque[float] = deque(maxlen=BEFORE)
        self._after: list[float] = []
        self._attached = self._on_device = False
        self._steps = 0
        """Steps without the profiler since the first window."""

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank."""
        self._on_device |= record.device_us is not None
        if record.profiled:
            self._attached = True
        elif not self._attached:
            if self._counts(record):
                self._before.append(record.step_us)
        elif self.us_per_step is not None:
            self.us += self.us_per_step
        else:
            self._steps += 1
            if self._steps > _SETTLING and self._counts(record):
                self._after.append(record.step_us)
            if len(self._after) == AFTER:
                self.us_per_step = _difference(self._before, self._after) if len(self._before) >= LEAST_BEFORE else 0.0
                self.us = self.us_per_step * self._steps

    def _counts(self, record: StepRecord) -> bool:
        """Return whether the step is like others: the times of host and device are not those of the same step."""
        return LONG_BY_DESIGN.isdisjoint(record.tags) and (record.device_us is not None or not self._on_device)


def _difference(before: Sequence[float], after: Sequence[float]) -> float:
    usual, since = median(before), median(after)
    more = since - usual
    # The variance of a median is pi / 2 times that of a mean.
    variances = (deviation(values, middle) ** 2 / len(values) for values, middle in ((before, usual), (after, since)))
    error = math.sqrt(math.pi / 2 * sum(variances))
    return more if _ERRORS * error < more <= MOST * usual else 0.0
