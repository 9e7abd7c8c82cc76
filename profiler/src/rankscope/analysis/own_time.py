"""Stragglers in the always-on records: own time (wall minus blocked) of a rank against its peers at the same step.

Walls are equalised by the collectives, own times are not: the rank whose own time is longest is the one the others wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result import Pattern
from rankscope.analysis.significance import (
    BLOCKS,
    LIMIT,
    UNCLEAR,
    block_sums,
    blocks_needed,
    chance_reaches,
    gap_p_value,
    looks,
    p_value,
    share_reaching,
    stability,
    widest_gap,
)
from rankscope.analysis.slow import FIXED, MINIMUM_EFFECT, Slow
from rankscope.analysis.step_order import Leaders, by_step, last_ranks, leaders, of_blocks, ordered
from rankscope.analysis.steps import Matrix, StepTable, Stored

MINIMUM_STEPS: Final = 5
"""Fewer usable steps decide nothing."""

WARM_UP: Final = 5
"""Steps at the start that are left out (at most a fifth of all): caches fill, allocators and buckets settle."""

FAR: Final = 0.3
"""A rank that is far out in less than this share of the steps is so now and then, though it be the last in most of them."""

REGULAR: Final = 0.75
"""Share of the distances between slow steps that must be a multiple of the same for them to come regularly."""

HALF: Final = 0.5
"""A rank that is last in fewer steps than this must stick out when it is, to be told from noise that lasts."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The part of a step table that can be judged: complete steps of comparable ranks."""

    table: StepTable
    """Usable steps only, all ranks."""
    rows: NDArray[np.intp]
    """Rows of the table that are compared."""
    own: Stored
    """[compared ranks, usable steps], no NaN."""
    wall_us: float
    """Typical step time: mean wall of the compared ranks over the steps."""

    @property
    def ranks(self) -> list[int]:
        """The compared ranks."""
        return [int(rank) for rank in self.table.ranks[self.rows]]


def comparable(table: StepTable, peers: Sequence[int]) -> tuple[NDArray[np.intp], NDArray[np.bool_]] | None:
    """Rows of the ranks ``peers`` that can be compared, and in which steps [steps]; ``None`` when fewer than ``MINIMUM_STEPS``
    steps or two ranks can.

    Left out: warm-up steps; steps in which any rank was profiled, where enough others remain; ranks without own time or with
    less than half of the steps; steps some compared rank lacks.
    """
    count = len(table.steps)
    keep = np.arange(count) >= min(WARM_UP, count // 5)
    unprofiled = keep & ~table.profiled.any(axis=0)
    if unprofiled.sum() >= MINIMUM_STEPS:
        keep = unprofiled
    known = np.isfinite(table.stored("own_us"))
    per_rank = (known & keep).sum(axis=1)
    candidates = np.isin(table.ranks, peers)
    usual = per_rank[candidates].max(initial=0)
    rows = np.flatnonzero(candidates & (per_rank > 0) & (2 * per_rank >= usual))
    if len(rows) < 2:
        return None
    keep = keep & known[rows].all(axis=0)
    return (rows, keep) if keep.sum() >= MINIMUM_STEPS else None


def judge(table: StepTable, peers: Sequence[int]) -> Judged | None:
    """What of the ranks ``peers`` is ``comparable``, or ``None``."""
    found = comparable(table, peers)
    if found is None:
        return None
    rows, keep = found
    usable = table.columns(keep)
    own = usable.stored("own_us")
    # As in the waterfall: of a step whose ranks end apart the longest wall overlaps the next one.
    sums = of_blocks(own.shape, lambda steps: float(usable.some("wall_us", steps)[rows].sum(dtype=np.float64)))
    wall = sum(sums) / (len(rows) * own.shape[1])
    if wall <= 0:  # by a broken clock: there is nothing to judge against
        return None
    return Judged(usable, rows, own if len(rows) == len(own) else own[rows], wall)


def judged_groups(table: StepTable, groups: Iterable[Sequence[int]]) -> list[Judged]:
    """What of each of ``groups``, ranks that do the same work, can be judged."""
    return [judged for peers in groups if (judged := judge(table, peers)) is not None]


def excess(values: Stored) -> Matrix:
    """Each rank's value minus the median of the *other* ranks at the same step. [ranks, steps] in and out."""
    result = np.empty(values.shape)

    def enter(steps: slice) -> None:
        np.subtract(values[:, steps], _median_of_others(values[:, steps]), out=result[:, steps])

    of_blocks(values.shape, enter)
    return result


def mean_excess(values: Stored, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """The mean over the steps of ``excess`` among the ranks in some ``rows``, [rows]."""

    def summed(steps: slice) -> NDArray[np.float64]:
        block = values[rows, steps]
        sums: NDArray[np.float64] = (block - _median_of_others(block)).sum(axis=1)
        return sums

    mean: NDArray[np.float64] = np.sum(of_blocks((len(rows), values.shape[1]), summed), axis=0) / values.shape[1]
    return mean


def _median_of_others(block: Stored) -> Matrix:
    """For each value the median of those of the other ranks at the same step. [ranks, steps] in and out."""
    ranks = len(block)
    # The median of the others without a loop: leaving out a rank shifts what lies above it down by one.
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


def saved(leading: Leaders, rest: Leaders) -> NDArray[np.float64]:
    """Per step, how much earlier it would end were all ranks no slower than the slowest of the ``rest``, which are not slow."""
    return leading.largest - rest.largest


def saved_by_each(own: Stored) -> NDArray[np.float64]:
    """Per rank, the mean over the steps of what it costs that it is last: what noise alone costs, where nobody is slow."""
    return _saved_by_each(leaders(own), len(own))


def _saved_by_each(leading: Leaders, ranks: int) -> NDArray[np.float64]:
    each: NDArray[np.float64] = np.bincount(leading.rows, weights=leading.ahead, minlength=ranks) / len(leading.rows)
    return each


def waits(judged: Judged) -> tuple[NDArray[np.intp], Matrix]:
    """Who came last, [usable steps], and how long each compared rank waited for it, [compared ranks, usable steps].

    At each step the rank with the longest own time came last; a victim waited for it as long as its own time was shorter, but
    no longer than it was blocked.
    """
    return last_ranks(judged.own), _waits(judged, slice(None))


def _waits(judged: Judged, steps: slice) -> Matrix:
    own = judged.own[:, steps].astype(np.float64)
    blocked = judged.table.some("blocked_us", steps)[judged.rows].astype(np.float64)
    wait: Matrix = np.minimum(own.max(axis=0) - own, np.nan_to_num(blocked)).clip(min=0)
    return wait


def imposed_by_step(judged: Judged) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Who came last, and how long all others together were blocked because of it, both [usable steps]."""
    wait = np.concatenate(of_blocks(judged.own.shape, lambda steps: _waits(judged, steps).sum(axis=0)))
    return last_ranks(judged.own), wait


def imposed_wait(judged: Judged) -> dict[int, float]:
    """Per rank, microseconds that others were blocked because of it, summed over victims and usable steps."""
    last, wait = imposed_by_step(judged)
    totals = np.bincount(last, weights=wait, minlength=len(judged.own))
    return {rank: float(totals[row]) for row, rank in enumerate(judged.ranks)}


def find_slow(judged: Judged) -> Slow | None:
    """The ranks that stand out, or ``None`` when nobody does.

    One after the other, or together where they are equally slow, while their mean excess is significant and at least
    ``MINIMUM_EFFECT`` of the step; more than half of the ranks cannot be outliers. Named only when healing them would save
    ``MINIMUM_EFFECT`` of the step beyond what any rank's noise costs.
    """
    own = judged.own
    limit = MINIMUM_EFFECT * judged.wall_us
    slow = np.zeros(len(own), dtype=bool)
    named: list[int] = []
    p = 0.0
    sums_of_own = block_sums(own.T)
    while (ahead := _ahead(own, sums_of_own, slow, limit)) is not None and ahead.certain:
        p = max(p, ahead.p_value)
        named += ahead.rows
        slow[ahead.rows] = True
    if not named:
        return None
    others = np.flatnonzero(~slow)
    leading, rest = leaders(own), leaders(own, others)
    gain = saved(leading, rest)
    if gain.mean() - _noise_costs(rest, len(others)) < limit:
        return None
    last = slow[leading.rows]
    least, *middle = ordered(own, [0, (len(others) - 1) // 2, len(others) // 2], others)
    if last.mean() < HALF and not _sticks_out(gain, rest.largest - least):
        return None
    usual: NDArray[np.float64] = np.stack(middle).mean(axis=0, dtype=np.float64)
    over_usual = own[named[0]] - usual
    far = _far(over_usual)
    pattern: Pattern = "fixed" if last.mean() >= FIXED and far.mean() >= FAR else "intermittent"
    affected = last if pattern == "fixed" else far
    # Sums of each rank's time over the usual one.
    sums = sums_of_own - block_sums(usual[:, None])
    weakest = sorted(named, key=lambda row: float(sums[:, row].sum()))[:_WEAKEST]
    return Slow(
        ranks=[judged.ranks[row] for row in named],
        pattern=pattern,
        # Healed, it would still be last now and then, as the others are.
        gain_us=max(0.0, float(gain.mean() - np.median(_saved_by_each(leading, len(own))[~slow]))),
        excess_us=float(over_usual[affected].mean()),
        p_value=p,
        stability=min(stability(sums[:, [row, *others]], 0, at_least=limit * own.shape[1]) for row in weakest),
        last_share=float(last.mean()),
        affected=affected,
    )


_WEAKEST: Final = 8
"""Of very many slow ranks so many are the least certain."""


def _far(over: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The steps that make up a rank's excess: those with half of what it is in a typical microsecond of it, or more."""
    positive = np.maximum(over, 0.0)
    far: NDArray[np.bool_] = over >= 0.5 * (positive**2).sum() / positive.sum()
    return far


def period(steps: NDArray[np.int64]) -> int | None:
    """The distance at which these steps come, ascending, if most follow each other at the same; ``None`` otherwise, or of few."""
    apart = np.diff(steps)
    if len(apart) < 4:
        return None
    usual = int(np.median(apart))
    # Every second one may be missing where it did not stand out.
    return usual if usual > 1 and (apart % usual == 0).mean() >= REGULAR else None


def _noise_costs(rest: Leaders, ranks: int) -> float:
    """What being last by mere noise costs per step: of a typical rank among those that are not slow."""
    return float(np.median(_saved_by_each(rest, ranks))) if ranks > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Ranks that are farther out than all the others."""

    rows: list[int]
    """Worst first."""
    p_value: float
    beyond_noise: bool
    """Noise as lasting as that of the others does not carry a mean so far."""

    @property
    def certain(self) -> bool:
        """Chance is excluded."""
        return self.p_value <= LIMIT and self.beyond_noise


def _ahead(own: Stored, sums_of_own: Matrix, slow: NDArray[np.bool_], limit: float) -> _Ahead | None:
    """Of the ranks that are not yet known to be ``slow``, those that are the farthest ahead of all others, or else the worst;
    ``None`` when nobody's mean excess is at ``limit``, or no more can be outliers.

    Two looks, so twice the chance: are some of them so far ahead by chance, and if they may be, is one so far out?
    """
    left = np.flatnonzero(~slow)
    over = mean_excess(own, left)
    most = min(len(own) // 2 - int(slow.sum()), int((over >= limit).sum()))
    if most < 1:
        return None
    sums = sums_of_own[:, left]
    order = np.argsort(-sums.sum(axis=0), kind="stable")

    def look(count: int, chance: float) -> _Ahead:
        rest = left[order[count:]]
        # Of very many ranks some tell what their noise is like; of two, one is not enough to tell.
        some = rest[:: max(1, len(rest) // _ENOUGH_NOISE)] if len(rest) > 1 else left
        bound = chance_reaches(excess(own[some]).T, len(left))
        beyond = bool(over[order[count - 1]] > bound)
        return _Ahead([int(row) for row in left[order[:count]]], min(1.0, looks(len(left)) * chance), beyond)

    several, gap = widest_gap(sums.sum(axis=0), most)
    together = look(several, gap_p_value(sums, gap))
    if together.certain:
        return together
    alone = look(1, p_value(sums, int(order[0])))
    return alone if alone.certain or alone.p_value < together.p_value else together


_ENOUGH_NOISE: Final = 64
"""Ranks."""


def by_chance_elsewhere(judged: Judged, slow: Slow, others: Sequence[Judged]) -> float:
    """Chance that a rank of ``others``, groups in which nobody is slow, would be as far out as the worst of ``slow`` is.

    To be added to its p-value: who looks into many groups finds something in one of them.
    """
    if not others:
        return 0.0
    mean = excess(judged.own)[judged.ranks.index(slow.ranks[0])].mean()
    return sum(share_reaching(block_sums(excess(one.own).T), float(mean) * one.own.shape[1]) for one in others)


@dataclass(frozen=True, slots=True)
class Suspect:
    """Ranks that would be named if chance could be excluded."""

    ranks: list[int]
    far: int
    """Steps in which the worst was far out."""
    needed: int | None
    """So many would do; ``None``: more than there are."""


def too_short(judged: Judged) -> Suspect | None:
    """Who made the others wait at a price, in so few steps that it may be chance; ``None`` when there is nobody.

    It may be when so few steps can tell nobody from chance, when in some steps, not all in one place, one was far out and nobody
    else ever was, or when chance would do the same now and then, but not often. To be asked where ``find_slow`` named nobody.
    """
    own = judged.own
    steps = own.shape[1]
    limit = MINIMUM_EFFECT * judged.wall_us
    slow = np.zeros(len(own), dtype=bool)
    ahead = _ahead(own, block_sums(own.T), slow, limit)
    if ahead is None:
        return None
    slow[ahead.rows] = True
    others = np.flatnonzero(~slow)
    rest = leaders(own, others)
    if saved(leaders(own), rest).mean() - _noise_costs(rest, len(others)) < limit:
        return None
    over = excess(own)
    far = _far(over[ahead.rows[0]])
    blocks = int((block_sums(far[:, None].astype(np.float64)) > 0).sum())
    needed = blocks_needed(len(own))
    alone = blocks > 1 and over[~slow].max() < over[ahead.rows[0]][far].min()
    if not (alone or min(BLOCKS, steps) < needed or ahead.p_value <= UNCLEAR):
        return None
    return Suspect([judged.ranks[row] for row in ahead.rows], int(far.sum()), needed if far.sum() < needed else None)


def _sticks_out(gain: NDArray[np.float64], apart: NDArray[np.float64]) -> bool:
    """Whether most of what was lost was lost in steps in which the slow ones were farther out than the others are apart.

    A rank that is last only now and then is told from noise that lasts for a while (a neighbour's job) by how far out it is then.
    """
    far = gain >= apart
    return bool(gain[far].sum() >= 0.7 * gain.sum())
