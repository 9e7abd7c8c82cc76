"""Stragglers in the always-on records: own time (wall minus blocked) of a rank against its peers at the same step.

Walls are equalised by the collectives, own times are not: the rank whose own time is longest is the one the others wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result import Pattern
from rankscope.analysis.significance import (
    BLOCKS,
    LIMIT,
    attainable_p,
    block_sums,
    chance_reaches,
    p_value,
    share_reaching,
    stability,
)
from rankscope.analysis.steps import Matrix, StepTable

MINIMUM_STEPS: Final = 5
"""Fewer usable steps decide nothing."""

MINIMUM_EFFECT: Final = 0.05
"""Of the step time that would be saved; below it nobody is named, however certain."""

WARM_UP: Final = 5
"""Steps at the start that are left out (at most a fifth of all): caches fill, allocators and buckets settle."""

FIXED: Final = 0.6
"""A rank that is the last in this share of the steps is always slow; below it, now and then."""

FAR: Final = 0.3
"""... and so much of its excess comes in few steps when it is far out in less than this share of them: now and then."""

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
    own: Matrix
    """[compared ranks, usable steps], no NaN."""
    wall_us: float
    """Typical step time: mean over the steps of the longest wall of any compared rank."""

    @property
    def ranks(self) -> list[int]:
        """The compared ranks."""
        return [int(rank) for rank in self.table.ranks[self.rows]]


@dataclass(frozen=True, slots=True)
class Slow:
    """Ranks that make the others wait."""

    ranks: list[int]
    """Worst first. All that took part, when rotating."""
    pattern: Pattern
    gain_us: float
    """Mean step time that healing them saves: the longest own time minus the longest of the others'."""
    excess_us: float
    """Mean own time of the worst above the median of its peers, in the affected steps."""
    p_value: float | None
    stability: float
    last_share: float
    """Share of the steps in which one of them was last."""
    affected: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    """[usable steps]: where one of them was last; where it is intermittent, those in which the worst was far out."""


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
    known = np.isfinite(table.matrix("own_us"))
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
    wall = float(np.nanmax(usable.matrix("wall_us")[rows], axis=0).mean())
    return Judged(usable, rows, usable.matrix("own_us")[rows], wall)


_BLOCK: Final = 256
"""So many steps at a time, side by side in memory, fit into a processor's cache."""


def excess(values: Matrix) -> Matrix:
    """Each rank's value minus the median of the *other* ranks at the same step. [ranks, steps] in and out."""
    ranks = len(values)
    # The median of the others without a loop: leaving out a rank shifts what lies above it down by one.
    low, high = (ranks - 2) // 2, (ranks - 1) // 2
    wanted = sorted({low, min(low + 1, ranks - 1), high, min(high + 1, ranks - 1)})
    result = np.empty_like(values)
    for first in range(0, values.shape[1], _BLOCK):
        block = values[:, first : first + _BLOCK]
        ordered = dict(zip(wanted, np.partition(block.T, wanted, axis=1).T[wanted], strict=True))
        lower, upper = (
            np.where(block <= ordered[position], ordered[min(position + 1, ranks - 1)], ordered[position])
            for position in (low, high)
        )
        result[:, first : first + _BLOCK] = block - (lower + upper) / 2
    return result


def medians(values: Matrix) -> NDArray[np.float64]:
    """The median over the ranks at each step."""
    result = np.empty(values.shape[1])
    for first in range(0, len(result), _BLOCK):
        result[first : first + _BLOCK] = np.median(values[:, first : first + _BLOCK].T, axis=1)
    return result


def saved(own: Matrix, slow: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Per step, how much earlier it would end were the ranks marked ``slow`` no slower than the slowest of the others."""
    rest: NDArray[np.float64] = own[~slow].max(axis=0)
    gap: NDArray[np.float64] = np.maximum(own.max(axis=0) - rest, 0.0)
    return gap


def saved_by_each(own: Matrix) -> NDArray[np.float64]:
    """Per rank, the mean over the steps of what it costs that it is last: what noise alone costs, where nobody is slow."""
    second, first = np.partition(own, -2, axis=0)[-2:]
    each: NDArray[np.float64] = np.bincount(own.argmax(axis=0), weights=first - second, minlength=len(own)) / own.shape[1]
    return each


def waits(judged: Judged) -> tuple[NDArray[np.intp], Matrix]:
    """Who came last, [usable steps], and how long each compared rank waited for it, [compared ranks, usable steps].

    At each step the rank with the longest own time came last; a victim waited for it as long as its own time was shorter, but
    no longer than it was blocked.
    """
    own = judged.own
    blocked = judged.table.matrix("blocked_us")[judged.rows]
    return own.argmax(axis=0), np.minimum(own.max(axis=0) - own, np.nan_to_num(blocked)).clip(min=0)


def imposed_wait(judged: Judged) -> dict[int, float]:
    """Per rank, microseconds that others were blocked because of it, summed over victims and usable steps."""
    last, wait = waits(judged)
    totals = np.bincount(last, weights=wait.sum(axis=0), minlength=len(wait))
    return {rank: float(totals[row]) for row, rank in enumerate(judged.ranks)}


def find_slow(judged: Judged) -> Slow | None:
    """The ranks that stand out, or ``None`` when nobody does.

    One after the other, while their mean excess is significant and at least ``MINIMUM_EFFECT`` of the step; half of the ranks
    or more cannot be outliers. Named only when healing them would save ``MINIMUM_EFFECT`` of the step beyond what any rank's
    noise costs.
    """
    own = judged.own
    limit = MINIMUM_EFFECT * judged.wall_us
    slow = np.zeros(len(own), dtype=bool)
    named: list[int] = []
    p = 0.0
    while len(named) < max(1, (len(own) - 1) // 2):
        left = np.flatnonzero(~slow)
        scores = excess(own[left])
        worst = int(scores.mean(axis=1).argmax())
        if scores[worst].mean() < limit:
            break
        blocks = block_sums(scores.T)
        chance = p_value(blocks, worst)
        if chance > LIMIT or not _beyond_noise(scores, worst):
            break
        p = max(p, chance)
        named.append(int(left[worst]))
        slow[left[worst]] = True
    if not named:
        return None
    gain = saved(own, slow)
    rest = own[~slow]
    # What being last by mere noise costs: the same figure for a typical rank among the others.
    noise = float(np.median(saved_by_each(rest))) if len(rest) > 1 else 0.0
    if gain.mean() - noise < limit:
        return None
    last = slow[own.argmax(axis=0)]
    if last.mean() < HALF and not _sticks_out(gain, rest):
        return None
    over = {row: excess(own[[row, *np.flatnonzero(~slow)]]) for row in named}
    far = _far(over[named[0]][0])
    pattern: Pattern = "fixed" if last.mean() >= FIXED and far.mean() >= FAR else "intermittent"
    affected = last if pattern == "fixed" else far
    return Slow(
        ranks=[judged.ranks[row] for row in named],
        pattern=pattern,
        gain_us=float(gain.mean()),
        excess_us=float(over[named[0]][0][affected].mean()),
        p_value=p,
        stability=min(stability(block_sums(each.T), 0, at_least=limit * own.shape[1]) for each in over.values()),
        last_share=float(last.mean()),
        affected=affected,
    )


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


_ENOUGH_NOISE: Final = 64
"""Of very many ranks so many, evenly spread, tell what their noise is like."""


def _beyond_noise(scores: Matrix, worst: int) -> bool:
    """Whether the mean excess of one rank is farther out than noise as lasting as that of the others carries a mean."""
    rest = np.delete(np.arange(len(scores)), worst) if len(scores) > 2 else np.arange(len(scores))
    some = rest[:: max(1, len(rest) // _ENOUGH_NOISE)]
    return bool(scores[worst].mean() > chance_reaches(scores[some].T, len(scores)))


def by_chance_elsewhere(judged: Judged, slow: Slow, others: Sequence[Judged]) -> float:
    """Chance that a rank of ``others``, groups in which nobody is slow, would be as far out as the worst of ``slow`` is.

    To be added to its p-value: who looks into many groups finds something in one of them.
    """
    mean = excess(judged.own)[judged.ranks.index(slow.ranks[0])].mean()
    return sum(share_reaching(block_sums(excess(one.own).T), float(mean) * one.own.shape[1]) for one in others)


def too_short(judged: Judged) -> int | None:
    """The rank that would be named but for so few steps that no rank could be told from chance; ``None`` when there is none.

    To be asked where ``find_slow`` named nobody.
    """
    own = judged.own
    if attainable_p(min(BLOCKS, own.shape[1]), len(own)) <= LIMIT:
        return None
    over = excess(own).mean(axis=1)
    worst = int(over.argmax())
    gain = saved(own, np.arange(len(own)) == worst).mean()
    limit = MINIMUM_EFFECT * judged.wall_us
    return judged.ranks[worst] if over[worst] >= limit and gain >= limit else None


def _sticks_out(gain: NDArray[np.float64], rest: Matrix) -> bool:
    """Whether most of what was lost was lost in steps in which the slow ones were farther out than the others are apart.

    A rank that is last only now and then is told from noise that lasts for a while (a neighbour's job) by how far out it is then.
    """
    far = gain >= np.ptp(rest, axis=0)
    return bool(gain[far].sum() >= 0.7 * gain.sum())


def find_rotating(judged: Judged) -> Slow | None:
    """A slowness that moves from rank to rank, or ``None``.

    Somebody is always last; here the last one must be far out at most steps: the gap to the one before it at least five times
    the typical distance between the others, and 15 % of the step. Exponential noise, the worst that is common, reaches half of
    that.
    """
    own = judged.own
    if len(own) < 4 or own.shape[1] < 2 * MINIMUM_STEPS:
        return None
    ordered = np.partition(own, (0, -2, -1), axis=0)
    gap = ordered[-1] - ordered[-2]
    spacing = (ordered[-2] - ordered[0]) / (len(own) - 2)
    far = gap >= np.maximum(5 * spacing, 0.15 * judged.wall_us)
    if far.mean() < FIXED:
        return None
    counts = np.bincount(own.argmax(axis=0)[far], minlength=len(own))
    took_part = np.flatnonzero(counts >= 2)
    if len(took_part) < 3 or counts.max() > 0.5 * far.sum():
        return None
    return Slow(
        ranks=[judged.ranks[row] for row in took_part[np.argsort(-counts[took_part], kind="stable")]],
        pattern="rotating",
        gain_us=float(gap.mean()),
        excess_us=float(gap[far].mean()),
        p_value=None,
        stability=float(far.mean()),
        last_share=1.0,
        affected=far,
    )
