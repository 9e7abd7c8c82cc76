"""Excess of each rank's own time over its peers at the same step, and its sums over blocks of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import by_step, of_blocks
from rankscope.analysis.evidence.step_table.steps import Matrix, Stored
from rankscope.analysis.inference.judging.significance import BLOCKS, block_slices, block_sums


def excess(values: Stored) -> Matrix:
    """Return each rank's value minus the median of the *other* ranks at the same step. [ranks, steps] in and out."""
    result = np.empty(values.shape)

    def enter(steps: slice) -> None:
        np.subtract(values[:, steps], _median_of_others(values[:, steps]), out=result[:, steps])

    of_blocks(values.shape, enter)
    return result


def mean_excess(values: Stored, rows: NDArray[np.intp], at_most: float = np.inf) -> NDArray[np.float64]:
    """Return the mean over the steps of ``excess`` among the ranks in ``rows``, limited to ±``at_most`` at each step, [rows]."""

    def summed(steps: slice) -> NDArray[np.float64]:
        block = values[rows, steps]
        over = block - _median_of_others(block)
        sums: NDArray[np.float64] = over.clip(-at_most, at_most).sum(axis=1)
        return sums

    mean: NDArray[np.float64] = np.sum(of_blocks((len(rows), values.shape[1]), summed), axis=0) / values.shape[1]
    return mean


def _median_of_others(block: Stored) -> Matrix:
    """Return, for each value, the median of the other ranks at the same step. [ranks, steps] in and out."""
    ranks = len(block)
    # Without a loop: leaving out a rank shifts all larger values down by one place.
    low, high = (ranks - 2) // 2, (ranks - 1) // 2
    around = [low, min(low + 1, ranks - 1), high, min(high + 1, ranks - 1)]
    inorder = by_step(block)
    inorder.sort(axis=1)
    below, above_low, middle, above_high = inorder[:, around].T
    lower = np.where(block <= below, above_low, below)
    upper = lower if low == high else np.where(block <= middle, above_high, middle)
    others: Matrix = np.add(lower, upper, dtype=np.float64)
    others *= 0.5
    return others


@dataclass(frozen=True, slots=True)
class Measure:
    """Excess of each rank over its peers, summed over blocks of steps."""

    sums: Matrix
    """[blocks, ranks]; sums of the same block have the same, unknown offset."""
    at_most: float = np.inf
    """Largest excess that counts at a single step, in microseconds."""

    @property
    def limited(self) -> bool:
        """True if the excess is limited."""
        return self.at_most < np.inf


def measures_of(own: Stored, limit: float, blocks: int = BLOCKS) -> list[Measure]:
    """Return the measures by which ranks are compared: the excess itself and, where pauses dominate it, the limited excess.

    Long pauses of any rank hide a lasting slowness, because they determine the means. With a limited excess all steps count about
    equally. Both the choice and the limit depend on the values without their ranks, so permutations keep them.
    """
    plain = Measure(block_sums(own.T, blocks))
    sampled_excess = excess(own[:, :: max(1, own.shape[1] // _SAMPLED)])
    at_most = _USUAL * max(float(np.median(np.abs(sampled_excess))), limit)
    beyond = (np.abs(sampled_excess) - at_most).clip(min=0).sum()
    if beyond < _DOMINATED * np.abs(sampled_excess).sum():
        return [plain]
    everybody = np.arange(len(own))
    # Block by block: the excess of all ranks at all steps would be as large as the table.
    parts = [own[:, steps] for steps in block_slices(own.shape[1], blocks)]
    return [Measure(np.stack([part.shape[1] * mean_excess(part, everybody, at_most) for part in parts]), at_most), plain]


_SAMPLED: Final = 1000
"""Number of steps, about, from which the usual excess is estimated."""

_USUAL: Final = 2.0
"""Multiple of the usual excess, or of the least effect, up to which a step counts fully in the limited measure."""

_DOMINATED: Final = 0.1
"""Share of the excess that must be beyond the limit for the limited measure to be used."""
