"""Offset of a clock that drifts or was set, as a function of the clock's own time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.clock_series import Series


@dataclass(frozen=True, slots=True)
class Course:
    """Offset of a clock over time: straight lines between knots, held before the first and after the last."""

    at_ns: tuple[int, ...]
    """Times of the knots on this clock, ascending."""
    offset_ns: tuple[int, ...]
    """Offsets to subtract from these times."""

    def offset_at(self, unix_ns: int) -> int:
        """Return the offset to subtract from a time of this clock."""
        return _between(self.at_ns, self.offset_ns, unix_ns)

    def seen_at(self, common_ns: int) -> int:
        """Convert a time of the common clock to this clock."""
        common = [at - offset for at, offset in zip(self.at_ns, self.offset_ns, strict=True)]
        return common_ns + _between(common, self.offset_ns, common_ns)

    def offsets(self, unix_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``offset_at`` of many times."""
        first = self.at_ns[0]
        knots = np.array([at - first for at in self.at_ns], dtype=np.float64)
        return np.interp((unix_ns - first).astype(np.float64), knots, np.array(self.offset_ns, dtype=np.float64))


def course_of(series: Series, base_ns: int) -> Course:
    """Convert a series, in time since ``base_ns`` on the common clock, to a course in the clock's own time.

    A clock that was set back shows some times twice. These are taken to be the times after it was set.
    """
    at, offset = np.empty(0), np.empty(0)
    for one in reversed(series):
        own, amount = one.at + one.offset, one.offset
        if len(at) and own[-1] >= at[0]:
            until = at[0] - 1
            before = own < until
            if not before.any():
                continue
            own, amount = np.append(own[before], until), np.append(amount[before], np.interp(until, own, amount))
        at, offset = np.concatenate([own, at]), np.concatenate([amount, offset])
    latest = 2**62
    times = [min(max(base_ns + round(one), 0), latest) for one in np.maximum.accumulate(at).tolist()]
    return Course(tuple(times), tuple(round(one) for one in offset.tolist()))


def _between(at: Sequence[int], offset: Sequence[int], time: int) -> int:
    """Interpolate in integers, because floats cannot resolve nanoseconds of unix time."""
    right = bisect_right(at, time)
    if right == 0:
        return offset[0]
    if right == len(at):
        return offset[-1]
    before, after = at[right - 1], at[right]
    return offset[right - 1] + (offset[right] - offset[right - 1]) * (time - before) // (after - before)
