"""Noise of own times: how much they vary, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.steps import Matrix, Stored
from rankscope.analysis.inference.judging.significance import BLOCKS, block_slices
from rankscope.analysis.statistics import SAMPLED_RANKS, sampled

MOST_BLOCKS: Final = 32
"""Largest number of blocks: more would only make permutations slower. Of two ranks, which one block separates least, it is twice
as many."""

_LEAST_BLOCK: Final = 4.0
"""Least length of a block, where there are more than ``BLOCKS``, in multiples of the time that noise lasts."""

_PIECE: Final = 25
"""Number of steps, at least, within which noise is estimated."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of the excess of ranks over their peers."""

    steps: int
    rows: NDArray[np.intp]
    """Rows that it was estimated from."""
    variance: NDArray[np.float64]
    """Variance of the excess of each of them, in square microseconds."""
    lasts: float
    """Number of steps that it lasts: (1 + r) / (1 - r) for a correlation r of neighbouring steps."""

    @property
    def blocks(self) -> int:
        """Number of blocks of steps, several times as long as the noise lasts, within which ranks can be exchanged."""
        most = MOST_BLOCKS if len(self.rows) > 2 else 2 * MOST_BLOCKS
        return min(self.steps, max(BLOCKS, min(most, int(self.steps / (_LEAST_BLOCK * self.lasts)))))

    def error_of_mean(self, slow: NDArray[np.bool_]) -> tuple[float, float]:
        """Return the standard error of the mean excess of a rank that is not ``slow`` [ranks], and its degrees of freedom."""
        healthy = self.variance[~slow[self.rows]]
        if not len(healthy):
            healthy = self.variance
        independent = self.steps / self.lasts
        freedom = len(healthy) * (independent - 1)
        if freedom < 1:
            return math.inf, 1.0
        return math.sqrt(float(healthy.mean()) / independent), freedom


def noise_of(own: Stored, at_most: float = math.inf) -> Noise:
    """Return the noise of own times [ranks, steps]. ``at_most``: largest excess that counts at a single step, in microseconds.

    It is estimated within pieces of the run, so that a rank that is slow for a part of the run is no noise. It is taken for a
    first-order autoregressive process, with the middle of the correlations over ranks and pieces. Both estimates are corrected
    for the means of the pieces, which were subtracted (Kendall 1954).
    """
    ranks, steps = own.shape
    rows = sampled(np.arange(ranks))
    over = _over_peers(own, rows).clip(-at_most, at_most)
    pieces = block_slices(steps, min(BLOCKS, max(1, steps // _PIECE)))
    steps_apart: list[float] = []
    scatters = []
    for piece in pieces:
        part = over[:, piece]
        length = part.shape[1]
        part = part - part.mean(axis=1, keepdims=True)
        scatter = (part**2).sum(axis=1)
        step = np.divide((part[:, 1:] * part[:, :-1]).sum(axis=1), scatter, out=np.zeros(len(part)), where=scatter > 0)
        steps_apart += (step + (1 + 3 * step) / length).tolist()
        scatters.append(scatter)
    length = steps / len(pieces)
    step = min(max(0.0, float(np.median(steps_apart))), max(0.0, 1 - 2 / length))
    lasts = (1 + step) / (1 - step)
    hidden = min(0.8, lasts / length)
    variance: NDArray[np.float64] = np.sum(scatters, axis=0) / steps / (1 - hidden)
    return Noise(steps, rows, variance, lasts)


def _over_peers(own: Stored, rows: NDArray[np.intp]) -> Matrix:
    if len(own) == 2:
        difference: Matrix = (own[:1].astype(np.float64) - own[1:]).repeat(1, axis=0)
        return np.concatenate([difference, -difference])
    sample = own[:: max(1, len(own) // (4 * SAMPLED_RANKS))]
    return own[rows].astype(np.float64) - np.median(sample, axis=0)
