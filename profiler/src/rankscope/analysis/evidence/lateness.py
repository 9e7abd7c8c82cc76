"""What it costs that ranks are late: the one definition of the time that a job would save if no rank were.

A stretch of work ends when its last rank arrives. If no rank were late, all would take as long as the rank in the middle. So the
job loses, at each stretch, the longest own time minus that of the rank in the middle. The verdict on delays that move
(``inference.judging.moving_wait``) and the ideal step of what-if (``whatif.step_scenarios``) are sums of this over steps, or
over the stretches between two meetings. The waterfall's wait (``costs.step_costs``) is the wait of each rank, at most its
blocked time. What healing some of the ranks saves is in ``inference.judging.healing``: there the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import ALL, Leaders, Rows, leaders
from rankscope.analysis.evidence.step_table.steps import Stored

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lateness:
    """Last ranks and what they cost; arrays have one entry per stretch or step."""

    leaders: Leaders
    middle: Times
    """Own time of the rank in the middle."""

    @property
    def lost(self) -> Times:
        """Time that the job would save if no rank were late."""
        return self.leaders.largest - self.middle

    @classmethod
    def joined(cls, parts: Sequence[Lateness]) -> Lateness:
        """Return that of consecutive parts as one."""
        middles = [np.empty(0), *(part.middle for part in parts)]
        return cls(Leaders.joined(part.leaders for part in parts), np.concatenate(middles))


def lateness(own: Stored, rows: Rows = ALL) -> Lateness:
    """Return the lateness at each step of own times [ranks, steps] without NaN; ``leaders.ordered`` has the shortest first."""
    first = leaders(own, rows, places=[0, (len(own[rows, :1]) - 1) // 2])
    return Lateness(first, first.ordered[1].astype(np.float64))
