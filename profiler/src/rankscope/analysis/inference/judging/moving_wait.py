"""Waiting of ranks for each other that no single rank causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.evidence.lateness import lateness
from rankscope.analysis.evidence.order import ALL
from rankscope.analysis.inference.judging.healing import far_steps
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.result.text import OUTLIERS
from rankscope.analysis.statistics import mean_of

MOST_WAITING: Final = 0.1
"""Share of the step that ranks may wait for each other in a verdict that all is balanced."""


@dataclass(frozen=True, slots=True)
class MovingWait:
    """Waiting of ranks for each other that no single rank causes."""

    share: float
    """Share of the step that a typical rank waits for the last one."""
    last: NDArray[np.intp]
    """Row of the last rank at each step, [steps]."""
    affected: NDArray[np.bool_]
    """Steps that make up most of the waiting, [steps]."""
    certainty: float
    """Probability that ranks wait at least ``MOST_WAITING`` of the step, by the spread over the steps."""
    outlying: float
    """Share of the steps in which the last rank is an outlier: pauses or a fault that move. Noise of equal ranks makes none."""
    shares: dict[int, float] = field(default_factory=dict)
    """Share of the waiting that each rank imposed, most first."""

    @property
    def stands_out(self) -> bool:
        """True if the last rank is an outlier in most steps."""
        return self.outlying >= OUTLIERS

    def as_slow(self, times: OwnTimes) -> SlowRanks:
        """Return the ranks that took part as slow ranks of the pattern ``rotating``."""
        return SlowRanks(
            ranks=[rank for rank, share in self.shares.items() if share >= 0.25 / len(self.shares)],
            pattern="rotating",
            gain_us=self.share * times.wall_us,
            excess_us=self.share * times.wall_us,
            p_value=None,
            certainty=self.certainty,
            last_share=1.0,
            affected=self.affected,
        )


def moving_waits(times: OwnTimes, without: Sequence[int] = ()) -> MovingWait:
    """Return the waiting for whichever rank is last. ``without``: ranks that are named already; they neither wait nor delay."""
    ranks = times.ranks
    rows = np.array([row for row, rank in enumerate(ranks) if rank not in without])
    late = lateness(times.own, rows if len(rows) < len(ranks) else ALL)
    leading, wait = late.leaders, late.lost
    # Exponential noise, the worst common kind, leads by half of that.
    usual = (leading.largest - leading.ahead - leading.ordered[0]) / max(1, len(rows) - 2)
    is_outlying = leading.ahead >= np.maximum(5 * usual, 0.15 * times.wall_us)
    imposed = np.bincount(leading.rows, weights=wait, minlength=len(rows))
    total = float(imposed.sum())
    order = np.argsort(-imposed, kind="stable").tolist()
    return MovingWait(
        share=float(wait.mean()) / times.wall_us if times.wall_us > 0 else 0.0,
        last=rows[leading.rows],
        affected=far_steps(wait),
        certainty=1 - mean_of(wait).chance_below(MOST_WAITING * times.wall_us),
        outlying=float(is_outlying.mean()) if len(rows) > 3 else 0.0,
        shares={ranks[rows[row]]: float(imposed[row]) / total for row in order if imposed[row] > 0} if total > 0 else {},
    )
