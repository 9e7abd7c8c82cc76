"""Steps of a trace, by the profiler's annotations."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.categories import DEVICE_NOTE, NOTE
from rankscope.analysis.trace.columns import Trace

_STEP: Final = re.compile(r"ProfilerStep#(\d{1,18})")


class Steps(msgspec.Struct, frozen=True):
    """Annotated steps: their numbers and host intervals in nanoseconds, ascending in time."""

    numbers: list[int]
    thread: int
    """Thread of the annotations."""
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def position(self, time: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return, per time, the position of the step it falls in, or -1."""
        at = np.searchsorted(self.start, time, side="right") - 1
        inside = (at >= 0) & (time < self.end[np.maximum(at, 0)])
        return np.where(inside, at, -1)


def annotated_steps(trace: Trace) -> Steps | None:
    """Return the steps with a ``ProfilerStep#N`` annotation; ``None`` without any."""
    by_name = [int(found.group(1)) if (found := _STEP.fullmatch(name)) else -1 for name in trace.names]
    numbers_of_rows = np.array(by_name, dtype=np.int64)[trace.name]
    # A trace of device activities alone has only the device's copies of the annotations.
    for category in (NOTE, DEVICE_NOTE):
        rows = np.flatnonzero((trace.category == category) & (numbers_of_rows >= 0))
        if len(rows):
            break
    else:
        return None
    threads = trace.thread[rows]
    thread = int(np.bincount(threads).argmax())
    rows = rows[threads == thread]
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    numbers = [int(number) for number in numbers_of_rows[rows]]
    start, end = trace.start[rows], trace.end[rows].copy()
    for position in range(len(rows) - 1):
        # Consecutive steps have no gap between them; a pause of the profiler leaves one.
        if numbers[position + 1] == numbers[position] + 1 or end[position] > start[position + 1]:
            end[position] = start[position + 1]
    return Steps(numbers, thread, start, end)
