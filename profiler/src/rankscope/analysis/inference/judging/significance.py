"""Significance tests against the run's own noise.

Even in a healthy job some rank is always last. So a rank is named only if chance among equal ranks is very unlikely to produce
the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


def p_value(scores: Scores, column: int, other_scores: Sequence[Scores] = ()) -> float:
    """Return the chance that any of exchangeable ranks reaches the total of ``column`` in ``scores`` [blocks, ranks].

    This is a permutation test: the ranks' labels are exchanged within each block, and the largest total over all ranks is
    compared. So the result is corrected for the number of ranks. ``other_scores`` are other measures of the same ranks that
    could have led to the same conclusion: the largest total over all measures is compared, each in units of its standard
    deviation (maxT, Westfall and Young 1993). The result is never below 1 / (draws + 1).
    """
    measures, _ = _standardised(scores, other_scores)
    reached, draws = _reached(measures, _largest, float(measures[0, :, column].sum()))
    return (1 + reached) / (draws + 1)


def gap_p_value(scores: Scores, gap: float, other_scores: Sequence[Scores] = ()) -> float:
    """Return the chance that up to half of exchangeable ranks lead all the others by ``gap`` in total.

    This is the test of ``p_value`` for several ranks that are equally slow. Permutations easily reach the total of one of them
    alone, as another one takes its place in a block. They do not reach the gap of all of them together.
    """
    measures, deviation = _standardised(scores, other_scores)
    reached, draws = _reached(measures, lambda totals: _gaps(totals, totals.shape[-1] // 2).max(axis=-1), gap / deviation)
    return (1 + reached) / (draws + 1)


def _standardised(scores: Scores, other_scores: Sequence[Scores]) -> tuple[NDArray[np.float64], float]:
    """Return the measures [measures, blocks, ranks], each in units of its totals' standard deviation, and that of the first."""
    centred = np.stack([block - block.mean(axis=1, keepdims=True) for block in (scores, *other_scores)])
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


def number_of_tests(ranks: int) -> int:
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
    # Tolerance for rounding: sums of the same numbers depend on their order.
    least = value - 1e-12 * float(np.abs(measures[0]).sum())
    flat, first = measures.reshape(len(measures), -1), ranks * np.arange(blocks)[:, None]
    reached = 0
    for orders in _kept_orders(draws, blocks, ranks):
        totals = flat.take(orders + first, axis=1).sum(axis=2)
        reached += int((statistic(totals).max(axis=0) >= least).sum())
    return reached, draws


@dataclass(slots=True)
class _Orders:
    """Permutations of ranks within each block. Those of a run that is judged again and again are kept from the second time on."""

    draws: int
    blocks: int
    ranks: int
    _stored_orders: list[NDArray[np.unsignedinteger]] | None = None
    _is_used: bool = False

    def __iter__(self) -> Iterator[NDArray[np.unsignedinteger]]:
        if self._stored_orders is None and self._is_used and self.draws * self.blocks * self.ranks <= _MOST_KEPT:
            self._stored_orders = list(self._drawn())
        self._is_used = True
        return self._drawn() if self._stored_orders is None else iter(self._stored_orders)

    def _drawn(self) -> Iterator[NDArray[np.unsignedinteger]]:
        """Yield [some draws, blocks, ranks] at a time, which bounds memory."""
        rng = np.random.default_rng(_SEED)
        batch_draws = max(1, _AT_ONCE // (self.blocks * self.ranks))
        for first in range(0, self.draws, batch_draws):
            shape = (min(batch_draws, self.draws - first), self.blocks, self.ranks)
            yield rng.permuted(np.broadcast_to(np.arange(self.ranks), shape), axis=2).astype(np.min_scalar_type(self.ranks))


@lru_cache(maxsize=2)
def _kept_orders(draws: int, blocks: int, ranks: int) -> _Orders:
    return _Orders(draws, blocks, ranks)


_AT_ONCE: Final = 2**15
_MOST_KEPT: Final = 2**24
"""Number of places up to which permutations are kept: 32 MB."""


def attainable_p(blocks: int, ranks: int) -> float:
    """Return the smallest p-value possible for scores of this shape: the same rank leads in every block."""
    return min(1.0, float(ranks) ** (1 - blocks))


def blocks_needed(ranks: int) -> int:
    """Return the smallest number of blocks in which one of ``ranks`` can be distinguished from chance."""
    return next(blocks for blocks in range(1, BLOCKS + 1) if number_of_tests(ranks) * attainable_p(blocks, ranks) <= LIMIT)
