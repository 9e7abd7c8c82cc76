"""Is it real? Tests against the run's own noise.

With nothing wrong some rank is always last, so a rank is named only when chance among equals would hardly do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

BLOCKS: Final = 8
"""Noise lasts for several steps (a neighbour's job, a slow disk), so ranks are exchanged in blocks of steps, not step by step.
Fewer blocks forgive longer noise; with eight, two ranks can still be told apart at ``LIMIT``."""

LIMIT: Final = 0.01
"""Largest p-value at which a rank is named."""

UNCLEAR: Final = 0.1
"""Up to this p-value "nobody" would be said too confidently, though nobody can be named."""

_DRAWS: Final = 2000
_DRAWS_LARGE: Final = 500
_SEED: Final = 20_240_229
"""Fixed: the same run always gets the same answer."""


def block_sums(scores: NDArray[np.floating], blocks: int = BLOCKS) -> Scores:
    """Sum scores [units, ranks] over at most ``blocks`` runs of consecutive units: [blocks, ranks]."""
    edges = np.linspace(0, len(scores), min(blocks, len(scores)) + 1).astype(int)[:-1]
    if not len(scores):
        return scores.astype(np.float64)
    # Along the memory of a matrix [ranks, units], which is several times as fast as across it.
    return np.ascontiguousarray(np.add.reduceat(scores.T, edges, axis=1, dtype=np.float64).T)


def p_value(scores: Scores, column: int) -> float:
    """Chance that some rank among exchangeable ones reaches the total of ``column`` [blocks, ranks].

    A permutation test: within each block the ranks' labels are exchanged, and the largest total over all ranks is compared, so
    that it does not matter how many ranks were looked at. Never below 1 / (draws + 1).
    """
    reached, draws = _reached(scores, _largest, float(scores[:, column].sum()))
    return (1 + reached) / (draws + 1)


def gap_p_value(scores: Scores, gap: float) -> float:
    """Chance that some of exchangeable ranks, at most half of them, are by so much ahead of all the others in total.

    The same test as ``p_value`` for several ranks that are equally far out: each of them alone is reached by chance as soon as
    one of the others takes its place in a block, and all together are not.
    """
    reached, draws = _reached(scores, lambda totals: _gaps(totals, totals.shape[-1] // 2).max(axis=-1), gap)
    return (1 + reached) / (draws + 1)


def widest_gap(totals: Scores, most: int) -> tuple[int, float]:
    """Between the largest totals [ranks], one of the first ``most`` and the next: how many are ahead of it, how wide it is."""
    gaps = _gaps(totals, most)
    widest = int(gaps.argmax())
    return widest + 1, float(gaps[widest])


def _gaps(totals: Scores, most: int) -> Scores:
    """From each of the largest ``most`` totals to the next, [..., ranks] to [..., most]."""
    ordered = np.sort(totals, axis=-1)[..., : -most - 2 : -1]
    gaps: Scores = ordered[..., :-1] - ordered[..., 1:]
    return gaps


def looks(ranks: int) -> int:
    """How many tests ``p_value`` and ``gap_p_value`` are: of two ranks they are the same."""
    return 2 if ranks > 2 else 1


def share_reaching(scores: Scores, total: float) -> float:
    """Share of the permutations of ``scores`` [blocks, ranks] in which some rank reaches ``total``."""
    reached, draws = _reached(scores, _largest, total)
    return reached / draws


def _largest(totals: Scores) -> Scores:
    largest: Scores = totals.max(axis=-1)
    return largest


def _reached(scores: Scores, statistic: Callable[[Scores], Scores], value: float) -> tuple[int, int]:
    """In how many permutations, of how many, the statistic of the ranks' totals, [draws, ranks] to [draws], reaches ``value``."""
    blocks, ranks = scores.shape
    draws = _DRAWS if blocks * ranks <= 4096 else _DRAWS_LARGE
    rng = np.random.default_rng(_SEED)
    # The same numbers in another order do not add up to the same.
    least = value - 1e-12 * float(np.abs(scores).sum())
    reached = 0
    # Some draws at a time keep memory flat: 1,024 ranks x 12 blocks x 500 draws would be 50 MB otherwise.
    some = max(1, _AT_ONCE // scores.size)
    for first in range(0, draws, some):
        drawn = rng.permuted(np.broadcast_to(scores, (min(some, draws - first), blocks, ranks)), axis=2)
        totals = drawn.sum(axis=1)
        reached += int((statistic(totals) >= least).sum())
    return reached, draws


_AT_ONCE: Final = 2**15


def attainable_p(blocks: int, ranks: int) -> float:
    """The smallest p-value that any scores of that shape can have: in all blocks the same one of exchangeable ranks is ahead."""
    return min(1.0, float(ranks) ** (1 - blocks))


def blocks_needed(ranks: int) -> int:
    """The fewest blocks in which one of ``ranks`` can be told from chance."""
    return next(blocks for blocks in range(1, BLOCKS + 1) if looks(ranks) * attainable_p(blocks, ranks) <= LIMIT)


def stability(scores: Scores, column: int, *, at_least: float) -> float:
    """Share of bootstrap samples of the blocks in which ``column`` has the largest total, and a total of ``at_least``."""
    blocks = len(scores)
    rng = np.random.default_rng(_SEED)
    picks = rng.integers(0, blocks, size=(400, blocks))
    weights = np.zeros((400, blocks))
    np.add.at(weights, (np.arange(400)[:, None], picks), 1.0)
    totals = weights @ scores
    return float(np.mean((totals.argmax(axis=1) == column) & (totals[:, column] >= at_least)))


def chance_reaches(noise: Scores, ranks: int) -> float:
    """How far out the mean of the farthest of ``ranks`` equal ranks is once in a hundred times, from the ``noise`` [units, ranks]
    of some of them; infinite where the noise lasts so long that the units do not tell.

    Noise that lasts (a neighbour's job, a warm room) moves a mean farther than its scatter from unit to unit tells, so two
    estimates are taken, and the larger counts. Within the ranks: scatter and correlation of consecutive units, of all ranks
    together, as an autoregressive process of first order, corrected for the means that were subtracted (Kendall 1954). Between
    the ranks, where there are enough: how far apart their means are, by the median of the deviations. That one also knows ranks
    that always differ a little, and stands alone where noise lasts as long as the run.
    """
    units, held = noise.shape
    means = noise.mean(axis=0)
    apart = noise - means
    scatter = float((apart**2).sum())
    within = 0.0
    if scatter > 0:
        step = float((apart[1:] * apart[:-1]).sum()) / scatter
        step = min(max(0.0, step + (1 + 3 * step) / units), 1 - 2 / units)
        independent = units * (1 - step) / (1 + step)
        freedom = held * (independent - 1)
        within = float("inf")
        if freedom > 2:
            # The scatter around a mean that moves along is smaller than the one around the true mean.
            variance = scatter / (held * units) / (1 - 1 / independent)
            within = _farthest(ranks, freedom) * float(np.sqrt(variance / independent))
    if held < _ENOUGH_RANKS:
        return within
    between = _farthest(ranks, held) * 1.4826 * float(np.median(np.abs(means - np.median(means))))
    return max(0.0 if np.isinf(within) else within, between)


_ENOUGH_RANKS: Final = 5


def _farthest(ranks: int, freedom: float) -> float:
    """Quantile of Student's t that the farthest of so many reaches once in a hundred times; Fisher's expansion, two terms."""
    # Imported when there are ranks to compare: it takes as long as a dozen of our modules.
    from statistics import NormalDist

    z = NormalDist().inv_cdf(1 - LIMIT / ranks)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
