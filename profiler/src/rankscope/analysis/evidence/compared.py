"""Own times of ranks that do the same work, [ranks, steps]: the table of evidence that the tests of ``inference`` judge.

It is filled from step records here, and from matched collectives in ``inference/judging/late_ranks.py``. Collectives equalise
the wall times of ranks, but not their own times: the other ranks wait for the one with the longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.waits.savings import Savings
from rankscope.analysis.evidence.order import by_step, last_ranks, of_blocks
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable, Stored
from rankscope.analysis.evidence.typical import after_warm_up
from rankscope.analysis.statistics import medians

MINIMUM_STEPS: Final = 5
"""Minimum number of usable steps for a judgement."""

SPARSEST: Final = 1 / 100
"""Least number of steps with own time relative to the rank that has most: on devices, short steps have it in one of 1 to 64."""


class OwnTimes(Protocol):
    """Own times of ranks that do the same work, from step records or from collectives. The tests need no more than this."""

    @property
    def ranks(self) -> list[int]:
        """Compared ranks."""

    @property
    def steps(self) -> Sequence[int]:
        """Numbers of the compared steps."""

    @property
    def own(self) -> Stored:
        """Own time, [ranks, steps], no NaN. Only differences between ranks at the same step count."""

    @property
    def wall_us(self) -> float:
        """Typical step time."""

    @property
    def savings(self) -> Savings | None:
        """Savings at the collectives of each step; ``None`` where only whole steps are known."""


@dataclass(frozen=True, slots=True)
class StepOwnTimes:
    """Part of a step table that can be judged: complete steps of comparable ranks."""

    table: StepTable
    """Table of the usable steps, with all ranks."""
    rows: NDArray[np.intp]
    """Rows of the table that are compared."""
    own: Stored
    """Own time, [compared ranks, usable steps], no NaN."""
    wall_us: float
    """Typical step time: mean wall of the compared ranks over the steps."""

    @property
    def savings(self) -> None:
        """Step records have no collectives."""

    @property
    def steps(self) -> list[int]:
        """Numbers of the compared steps."""
        steps: list[int] = self.table.steps.tolist()
        return steps

    @property
    def ranks(self) -> list[int]:
        """Compared ranks."""
        return [int(rank) for rank in self.table.ranks[self.rows]]


def unprofiled(table: StepTable, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of the steps ``keep`` [steps] in which no rank was profiled; all of them where too few would remain."""
    plain = keep & ~table.profiled.any(axis=0)
    return plain if plain.sum() >= MINIMUM_STEPS else keep


def comparable(table: StepTable, peers: Sequence[int]) -> tuple[NDArray[np.intp], NDArray[np.bool_]] | None:
    """Return the rows of those ``peers`` that can be compared, and a mask of the steps [steps] in which they can.

    ``None`` with fewer than ``MINIMUM_STEPS`` such steps or fewer than two such ranks. Left out are warm-up steps; steps in which
    any rank was profiled, where enough others remain; ranks without own time, or with less than half of the steps of the peer
    that has most; and steps in which fewer than half of the compared ranks, or two, have own time. On devices not every step has
    own time, on a slow host fewer than on others: a rank is left out if it has it in less than ``SPARSEST`` of the steps of the
    peer that has most. Steps that such a rank lacks are left out.
    """
    keep = unprofiled(table, after_warm_up(len(table.steps)))
    is_known = table.known_mask("own_us")
    per_rank = (is_known & keep).sum(axis=1)
    candidates = np.isin(table.ranks, peers)
    recorded = (table.has_record & keep).sum(axis=1)
    recorded_enough = 2 * recorded >= recorded[candidates].max(initial=0)
    most = per_rank[candidates].max(initial=0)
    rows = np.flatnonzero(candidates & recorded_enough & (per_rank > 0) & (per_rank >= SPARSEST * most))
    if len(rows) < 2:
        return None
    sparse = rows[2 * per_rank[rows] < most]
    keep = keep & is_known[sparse].all(axis=0)
    keep &= is_known[rows].sum(axis=0) >= max(2, (len(rows) + 1) // 2)
    return (rows, keep) if keep.sum() >= MINIMUM_STEPS else None


def comparable_own_times(table: StepTable, peers: Sequence[int]) -> StepOwnTimes | None:
    """Return the own times of the ``comparable`` part of the table for the ranks ``peers``, or ``None``."""
    compared = comparable(table, peers)
    if compared is None:
        return None
    rows, keep = compared
    usable = replace(table, start_unix_ns=None).columns(keep)  # starts are not compared: no copy of them
    stored = usable.stored("own_us")
    own = fill_missing(stored if len(rows) == len(stored) else stored[rows])
    wall = mean_wall_us(usable, rows)
    if wall <= 0:  # from a broken clock
        return None
    return StepOwnTimes(usable, rows, own, wall)


def mean_wall_us(table: StepTable, rows: NDArray[np.intp]) -> float:
    """Return the mean time of the steps of a table on the ranks in ``rows``; 0 without any.

    The mean over the ranks counts: where ranks end a step at different times, the longest wall overlaps the next step.
    """

    def total(steps: slice) -> tuple[float, int]:
        walls = table.some("wall_us", steps, rows)
        return float(np.nansum(walls, dtype=np.float64)), int(np.isfinite(walls).sum())

    sums, counts = zip(*of_blocks(table.profiled.shape, total), strict=True)
    return float(sum(sums) / max(1, sum(counts)))


def fill_missing(own: Stored) -> Stored:
    """Return own times [ranks, steps] with an estimate where a rank lacks a step; the same array if none does.

    The estimate is the median of the other ranks at this step, and the rank's mean excess over them in its other steps. So a step
    without a record changes neither the mean of its rank nor that of the others. It is NaN for a rank, or at a step, of which
    nothing is known.
    """
    missing = ~np.isfinite(own)
    if not missing.any():
        return own
    middle = np.concatenate(of_blocks(own.shape, lambda steps: medians(by_step(own[:, steps]))))
    over = own - middle
    finite = np.isfinite(over)
    counts = finite.sum(axis=1)
    mean = np.full(len(own), np.nan)
    mean[counts > 0] = over.sum(axis=1, dtype=np.float64, where=finite)[counts > 0] / counts[counts > 0]
    result = own.copy()
    row, step = np.nonzero(missing)
    result[row, step] = middle[step] + mean[row]
    return result


def own_times_of_groups(table: StepTable, groups: Iterable[Sequence[int]]) -> list[StepOwnTimes]:
    """Return the comparable own times of each of ``groups`` of ranks that do the same work."""
    return [own_times for peers in groups if (own_times := comparable_own_times(table, peers)) is not None]


def waits_for_last(times: StepOwnTimes) -> tuple[NDArray[np.intp], Matrix]:
    """Return the row of the last rank, [usable steps], and each rank's wait for it, [compared ranks, usable steps].

    At each step the rank with the longest own time came last. A victim's wait is the difference between the two own times, but at
    most its blocked time.
    """
    return last_ranks(times.own), _waits(times, slice(None))


def _waits(times: StepOwnTimes, steps: slice) -> Matrix:
    blocked = times.table.some("blocked_us", steps, times.rows)
    return waiting(times.own[:, steps], np.where(np.isnan(blocked), blocked.dtype.type(0), blocked))


def waiting(own: Stored, blocked: Stored) -> Matrix:
    """Return each rank's wait for the rank with the longest own time, at most its blocked time; all [ranks, steps]."""
    own = own.astype(np.float64)
    wait: Matrix = np.minimum(own.max(axis=0) - own, blocked)
    return np.maximum(wait, 0.0, out=wait)


def imposed_by_step(times: StepOwnTimes, *, without: Sequence[int] = ()) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the row of the last rank, and the sum of the waits it imposed on all others, both [usable steps].

    ``without``: ranks whose waits are left out.
    """
    victims = ~np.isin(times.ranks, without)
    wait = np.concatenate(of_blocks(times.own.shape, lambda steps: _waits(times, steps)[victims].sum(axis=0)))
    return last_ranks(times.own), wait


def imposed_wait(times: StepOwnTimes, *, without: Sequence[int] = ()) -> dict[int, float]:
    """Return the imposed wait per rank in microseconds, summed over victims and usable steps.

    ``without``: ranks whose own waits are left out.
    """
    last, wait = imposed_by_step(times, without=without)
    totals = np.bincount(last, weights=wait, minlength=len(times.own))
    return {rank: float(totals[row]) for row, rank in enumerate(times.ranks)}
