"""Significance tests against the run's own noise.

Even in a healthy job some rank is always last. So a rank is named only if chance among equal ranks is very unlikely to produce
the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

BLOCKS: Final = 8
"""Number of blocks of steps within which ranks are exchanged. Noise lasts for several steps (another job on the node, a slow
disk), so steps are not exchanged one by one. Fewer blocks tolerate longer noise; with eight, one of two ranks can still be
named at ``LIMIT``."""

LIMIT: Final = 0.01
"""Largest p-value at which a rank is named."""

UNCLEAR: Final = 0.1
"""Up to this p-value, a verdict without a slow rank would be too confident, although no rank can be named."""

_DRAWS: Final = 2000
_DRAWS_LARGE: Final = 500
_SEED: Final = 20_240_229
"""Fixed seed, so that the same run always gets the same verdict."""


def block_sums(scores: NDArray[np.floating], blocks: int = BLOCKS) -> Scores:
    """Sum scores [units, ranks] over at most ``blocks`` runs of consecutive units: [blocks, ranks]."""
    if not len(scores):
        return scores.astype(np.float64)
    # Sums of slices are several times as fast as ``np.add.reduceat``, in either order of memory.
    return np.stack([scores[block].sum(axis=0, dtype=np.float64) for block in block_slices(len(scores), blocks)])


def block_slices(units: int, blocks: int = BLOCKS) -> list[slice]:
    """Return at most ``blocks`` runs of consecutive units, of about the same length."""
    edges = np.linspace(0, units, min(blocks, units) + 1).astype(int).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]


def p_value(scores: Scores, column: int, beside: Sequence[Scores] = ()) -> float:
    """Return the chance that any of exchangeable ranks reaches the total of ``column`` in ``scores`` [blocks, ranks].

    This is a permutation test: the ranks' labels are exchanged within each block, and the largest total over all ranks is
    compared. So the result is corrected for the number of ranks. ``beside`` are other measures of the same ranks that could have
    led to the same conclusion: the largest total over all measures is compared, each in units of its standard deviation
    (maxT, Westfall and Young 1993). The result is never below 1 / (draws + 1).
    """
    measures, _ = _standardised(scores, beside)
    reached, draws = _reached(measures, _largest, float(measures[0, :, column].sum()))
    return (1 + reached) / (draws + 1)


def gap_p_value(scores: Scores, gap: float, beside: Sequence[Scores] = ()) -> float:
    """Return the chance that up to half of exchangeable ranks lead all the others by ``gap`` in total.

    This is the test of ``p_value`` for several ranks that are equally slow. Permutations easily reach the total of one of them
    alone, as another one takes its place in a block. They do not reach the gap of all of them together.
    """
    measures, deviation = _standardised(scores, beside)
    reached, draws = _reached(measures, lambda totals: _gaps(totals, totals.shape[-1] // 2).max(axis=-1), gap / deviation)
    return (1 + reached) / (draws + 1)


def _standardised(scores: Scores, beside: Sequence[Scores]) -> tuple[NDArray[np.float64], float]:
    """Return the measures [measures, blocks, ranks], each in units of its totals' standard deviation, and that of the first."""
    centred = np.stack([one - one.mean(axis=1, keepdims=True) for one in (scores, *beside)])
    deviation = np.sqrt((centred**2).mean(axis=2).sum(axis=1))
    deviation[deviation == 0] = 1.0
    standardised: NDArray[np.float64] = centred / deviation[:, None, None]
    return standardised, float(deviation[0])


def widest_gap(totals: Scores, most: int) -> tuple[int, float]:
    """Return the number of ranks ahead of the widest gap between totals [ranks], and its width.

    Gaps are those between each of the ``most`` largest totals and the next.
    """
    gaps = _gaps(totals, most)
    widest = int(gaps.argmax())
    return widest + 1, float(gaps[widest])


def _gaps(totals: Scores, most: int) -> Scores:
    """Return the gap from each of the ``most`` largest totals to the next, [..., ranks] to [..., most]."""
    ordered = np.sort(totals, axis=-1)[..., : -most - 2 : -1]
    gaps: Scores = ordered[..., :-1] - ordered[..., 1:]
    return gaps


def looks(ranks: int) -> int:
    """Return the number of different tests among ``p_value`` and ``gap_p_value``: for two ranks they are the same."""
    return 2 if ranks > 2 else 1


def share_reaching(scores: Scores, total: float) -> float:
    """Return the share of the permutations of ``scores`` [blocks, ranks] in which some rank reaches ``total``."""
    reached, draws = _reached(scores[None], _largest, total)
    return reached / draws


def _largest(totals: Scores) -> Scores:
    largest: Scores = totals.max(axis=-1)
    return largest


def _reached(measures: NDArray[np.float64], statistic: Callable[[Scores], Scores], value: float) -> tuple[int, int]:
    """Return the number of permutations in which ``statistic`` reaches ``value`` in any measure, and the number of all.

    ``measures`` [measures, blocks, ranks] are permuted alike. ``statistic`` maps the ranks' totals [..., ranks] to [...].
    """
    _, blocks, ranks = measures.shape
    draws = _DRAWS if blocks * ranks <= 4096 else _DRAWS_LARGE
    rng = np.random.default_rng(_SEED)
    # Tolerance for rounding: sums of the same numbers depend on their order.
    least = value - 1e-12 * float(np.abs(measures[0]).sum())
    reached = 0
    # Draws in batches bound memory: 1,024 ranks x 12 blocks x 500 draws would be 50 MB otherwise.
    some = max(1, _AT_ONCE // (blocks * ranks))
    for first in range(0, draws, some):
        shape = (min(some, draws - first), blocks, ranks)
        if len(measures) == 1:  # a quarter faster than by indices, and the usual case
            totals = rng.permuted(np.broadcast_to(measures, shape), axis=2).sum(axis=1)[None]
        else:
            order = rng.permuted(np.broadcast_to(np.arange(ranks), shape), axis=2)
            totals = np.stack([np.take_along_axis(scores[None], order, axis=2).sum(axis=1) for scores in measures])
        reached += int((statistic(totals).max(axis=0) >= least).sum())
    return reached, draws


_AT_ONCE: Final = 2**15


def attainable_p(blocks: int, ranks: int) -> float:
    """Return the smallest p-value possible for scores of this shape: the same rank leads in every block."""
    return min(1.0, float(ranks) ** (1 - blocks))


def blocks_needed(ranks: int) -> int:
    """Return the smallest number of blocks in which one of ``ranks`` can be distinguished from chance."""
    return next(blocks for blocks in range(1, BLOCKS + 1) if looks(ranks) * attainable_p(blocks, ranks) <= LIMIT)


def stability(scores: Scores, column: int, *, at_least: float) -> float:
    """Return the share of bootstrap samples of the blocks in which ``column`` has the largest total, of at least ``at_least``."""
    blocks = len(scores)
    rng = np.random.default_rng(_SEED)
    picks = rng.integers(0, blocks, size=(400, blocks))
    weights = np.zeros((400, blocks))
    np.add.at(weights, (np.arange(400)[:, None], picks), 1.0)
    totals = weights @ scores
    return float(np.mean((totals.argmax(axis=1) == column) & (totals[:, column] >= at_least)))


def chance_reaches(noise: Scores, ranks: int) -> float:
    """Return the mean excess that the farthest of ``ranks`` equal ranks reaches by chance once in a hundred times.

    It is estimated from the ``noise`` [units, ranks] of some of the ranks. It is infinite if the noise lasts too long for an
    estimate from the units.

    Lasting noise (another job on the node, a warm room) moves a mean farther than the scatter of the units suggests. So the
    larger of two estimates counts:

    - Within the ranks: ``standard_error`` of a mean over the units.
    - Between the ranks, if there are enough: the distance of their means, by the median of the deviations. It includes ranks that
      always differ a little. It is used alone where noise lasts as long as the run.
    """
    held = noise.shape[1]
    error, freedom = standard_error(noise)
    within = error * farthest(ranks, freedom) if 0 < error < float("inf") else error
    if held < _ENOUGH_RANKS:
        return within
    means = noise.mean(axis=0)
    between = farthest(ranks, held) * 1.4826 * float(np.median(np.abs(means - np.median(means))))
    return max(0.0 if np.isinf(within) else within, between)


def standard_error(noise: Scores) -> tuple[float, float]:
    """Return the standard error of the mean of one rank in ``noise`` [units, ranks], and its degrees of freedom.

    It is estimated from scatter and correlation of consecutive units, over all ranks together, as a first-order autoregressive
    process, corrected for the means that were subtracted (Kendall 1954). It is infinite if the noise lasts too long.
    """
    units, held = noise.shape
    apart = noise - noise.mean(axis=0)
    scatter = float((apart**2).sum())
    if scatter == 0:
        return 0.0, float("inf")
    step = float((apart[1:] * apart[:-1]).sum()) / scatter
    step = min(max(0.0, step + (1 + 3 * step) / units), 1 - 2 / units)
    independent = units * (1 - step) / (1 + step)
    freedom = held * (independent - 1)
    if freedom <= 2:
        return float("inf"), freedom
    # The scatter around the estimated mean is smaller than around the true mean.
    variance = scatter / (held * units) / (1 - 1 / independent)
    return float(np.sqrt(variance / independent)), freedom


_ENOUGH_RANKS: Final = 5


def farthest(ranks: int, freedom: float) -> float:
    """Return the quantile of Student's t that the farthest of ``ranks`` reaches once in a hundred times.

    Computed by Fisher's expansion, two terms.
    """
    # Imported only when there are ranks to compare: it takes as long as a dozen of our modules.
    from statistics import NormalDist

    z = NormalDist().inv_cdf(1 - LIMIT / ranks)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


_SURE: Final = 5.5
"""Mean excess, in standard errors, at which a rank is usually named: with eight blocks and two ranks, that is an excess of 1.9
standard errors in each of the blocks."""

_LEAST_MORE: Final = 1.5
"""Least multiple of the steps that is estimated: as many were not enough."""

_MOST_MORE: Final = 10.0
"""Largest multiple of the steps up to which an estimate is meaningful."""


def steps_needed(excess: NDArray[np.float64], far: int, needed: int) -> float | None:
    """Return the number of steps after which a rank is usually named if its ``excess`` [steps] stays the same.

    Measured in standard errors, its mean grows with the square root of the number of steps. ``far``: number of slow steps so far;
    ``needed``: least number of slow steps. ``None``: there is no meaningful estimate.
    """
    steps, mean, (error, _) = len(excess), float(excess.mean()), standard_error(excess[:, None])
    more = max(needed / far if far < needed else _LEAST_MORE, (_SURE * error / mean) ** 2 if mean > 0 else float("inf"))
    if more > _MOST_MORE:
        return None
    return max(more * steps, needed)
