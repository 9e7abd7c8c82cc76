"""Stragglers in the always-on records: own time (wall minus blocked) of a rank compared with its peers at the same step.

Collectives equalise the wall times of ranks, but not their own times: the other ranks wait for the one with the longest own time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.evidence.order import Leaders, leaders, ordered
from rankscope.analysis.evidence.steps import Matrix, Stored
from rankscope.analysis.inference.excess import Measure, excess, mean_excess, measures_of
from rankscope.analysis.inference.significance import (
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
    steps_needed,
    widest_gap,
)
from rankscope.analysis.inference.slow import FIXED, MINIMUM_EFFECT, Slow
from rankscope.analysis.result.analysis import Pattern

FAR: Final = 0.3
"""Minimum share of steps with large excess of a rank with pattern ``fixed``; below, it is intermittent even if usually last."""

REGULAR: Final = 0.75
"""Minimum share of distances between slow steps that are a multiple of their median, for the steps to be periodic."""

HALF: Final = 0.5
"""Share of steps below which a rank that is last must be an outlier in these steps, to distinguish it from lasting noise."""


def saved(leading: Leaders, rest: Leaders) -> NDArray[np.float64]:
    """Return the time saved at each step if the slow ranks took as long as the slowest of the ``rest``, [steps]."""
    return leading.largest - rest.largest


def saved_by_each(own: Stored) -> NDArray[np.float64]:
    """Return the time per step that each rank costs by being the last, [ranks].

    At each step the last rank costs its lead over the second to last, and the others cost nothing. Healthy ranks take turns in
    being last, so they cost something, too.
    """
    return _saved_by_each(leaders(own), len(own))


def _saved_by_each(leading: Leaders, ranks: int) -> NDArray[np.float64]:
    each: NDArray[np.float64] = np.bincount(leading.rows, weights=leading.ahead, minlength=ranks) / len(leading.rows)
    return each


def find_slow(judged: OwnTimes) -> Slow | None:
    """Return the ranks that are significantly slow, or ``None`` without any.

    Ranks are added one by one, or together where they are equally slow, while their mean excess is significant and at least
    ``MINIMUM_EFFECT`` of the step. More than half of the ranks cannot be outliers. Ranks are named only when healing them would
    save ``MINIMUM_EFFECT`` of the step beyond the cost of a typical rank's noise. Ranks for which nobody waits, as others are
    slower, are not named, but returned as ``behind``. Those added last are left out again as long as their excess would probably
    not recur: they would take away the certainty about the others.
    """
    own = judged.own
    limit = MINIMUM_EFFECT * judged.wall_us
    slow = np.zeros(len(own), dtype=bool)
    found: list[_Ahead] = []
    measures = measures_of(own, limit)
    while (ahead := _ahead(own, measures, slow, limit, certain=True)) is not None and ahead.certain:
        found.append(ahead)
        slow[ahead.rows] = True
    found, behind = _waited_for(judged, found)
    named = None
    for count in range(len(found), 0, -1):
        named = _named(judged, found[:count], measures[-1], limit)
        if named is None or named.stability >= _RECURS:
            break
    return None if named is None else replace(named, behind=[judged.ranks[row] for row in behind])


_RECURS: Final = 0.5
"""Minimum stability of the ranks that are named beside others."""

_WAITED_FOR: Final = 0.1
"""Minimum wait that a rank named beside others imposes, as a share of the mean over these ranks."""


def _waited_for(judged: OwnTimes, found: list[_Ahead]) -> tuple[list[_Ahead], list[int]]:
    """Return those of ``found`` for which the others wait, and the rows of the rest: a slower rank comes after them."""
    rows = [row for ahead in found for row in ahead.rows]
    if len(rows) < 2 or judged.savings is not None:
        return found, []
    leading = leaders(judged.own)
    waits = leading.largest - judged.own.mean(axis=0, dtype=np.float64)
    imposed = np.bincount(leading.rows, weights=waits, minlength=len(judged.own))
    behind = [row for row in rows if imposed[row] < _WAITED_FOR * imposed[rows].mean()]
    kept = [replace(ahead, rows=rest) for ahead in found if (rest := [row for row in ahead.rows if row not in behind])]
    return kept, behind


def _named(judged: OwnTimes, found: Sequence[_Ahead], plain: Measure, limit: float) -> Slow | None:
    """Return the ranks of ``found`` as slow ranks; ``None`` if they cost too little, or seldom, beside what noise costs.

    ``plain``: the measure of excess without a limit. ``limit``: minimum effect, in microseconds per step.
    """
    own = judged.own
    slow = np.zeros(len(own), dtype=bool)
    slow[[row for ahead in found for row in ahead.rows]] = True
    # Worst first by the plain excess: by the limited one, ranks that are always beyond the limit would be equal.
    named = sorted((row for ahead in found for row in ahead.rows), key=lambda row: -float(plain.sums[:, row].sum()))
    measure = found[0].measure
    others = np.flatnonzero(~slow)
    gain = _gain(judged, slow)
    # What happened in one step alone is no slowness, however small the excess in the others that makes chance improbable.
    if gain.without_longest_us < limit:
        return None
    least, *middle = ordered(own, [0, (len(others) - 1) // 2, len(others) // 2], others)
    usual: NDArray[np.float64] = np.stack(middle).mean(axis=0, dtype=np.float64)
    over_usual = own[named[0]] - usual
    far = _far(np.minimum(over_usual, measure.at_most))
    last = gain.last
    often = max(float(last.mean()), float(far.mean()) if measure.limited else 0.0)
    if often < HALF and not _sticks_out(gain.saved, gain.longest_other - least):
        return None
    pattern: Pattern = "fixed" if often >= FIXED and far.mean() >= FAR else "intermittent"
    affected = last if pattern == "fixed" and not measure.limited else far
    # Sums of each rank's excess over the ranks that are not slow.
    sums = measure.sums - (0.0 if measure.limited else block_sums(usual[:, None]))
    weakest = sorted(named, key=lambda row: float(sums[:, row].sum()))[:_WEAKEST]
    return Slow(
        ranks=[judged.ranks[row] for row in named],
        pattern=pattern,
        gain_us=gain.gain_us,
        excess_us=float(over_usual[affected].mean()),
        p_value=max(ahead.p_value for ahead in found),
        stability=min(stability(sums[:, [row, *others]], 0, at_least=limit * own.shape[1]) for row in weakest),
        last_share=float(last.mean()),
        affected=affected,
    )


@dataclass(frozen=True, slots=True)
class _Gain:
    """Time that healing slow ranks saves, and what noise costs."""

    saved: NDArray[np.float64]
    """Time saved at each step, [steps]."""
    last: NDArray[np.bool_]
    """True at the steps in which one of the slow ranks costs most, [steps]."""
    by_noise_us: float
    """Mean cost per step of being last by noise alone, for a typical rank among those that are not slow."""
    by_other_us: float
    """The same while the slow ranks are there."""
    longest_other: NDArray[np.float64]
    """Longest own time among the ranks that are not slow, [steps]."""

    @property
    def gain_us(self) -> float:
        """Mean time saved per step: a healed rank would still be last intermittently, as the others are."""
        return max(0.0, float(self.saved.mean()) - self.by_other_us)

    @property
    def without_longest_us(self) -> float:
        """The same beyond noise, without the step in which most is saved."""
        return float((self.saved.sum() - self.saved.max()) / len(self.saved)) - self.by_noise_us


def _gain(judged: OwnTimes, slow: NDArray[np.bool_]) -> _Gain:
    """Return the time that healing the ranks ``slow`` [ranks] saves: of whole steps, or of their collectives if that is more."""
    own, others = judged.own, np.flatnonzero(~slow)
    leading, rest = leaders(own), leaders(own, others)
    by_other = float(np.median(_saved_by_each(leading, len(own))[others]))
    whole = _Gain(saved(leading, rest), slow[leading.rows], _noise_costs(rest, len(others)), by_other, rest.largest)
    if judged.savings is None:
        return whole
    together, each = judged.savings.together(np.flatnonzero(slow).tolist()), judged.savings.each()[others]
    by_noise = float(np.median(each.mean(axis=1)))
    met = _Gain(together, together > each.max(axis=0), by_noise, by_noise, rest.largest)
    return met if met.gain_us > whole.gain_us else whole


_WEAKEST: Final = 8
"""Maximum number of slow ranks, those with the least excess, whose stability is computed."""


def _far(over: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the steps that make up a rank's excess: those with at least half of its mean, weighted by the excess itself."""
    positive = np.maximum(over, 0.0)
    far: NDArray[np.bool_] = over >= 0.5 * (positive**2).sum() / positive.sum()
    return far


def period(steps: NDArray[np.int64]) -> int | None:
    """Return the period of ascending ``steps`` if most distances are multiples of it; ``None`` otherwise or below 5 steps."""
    apart = np.diff(steps)
    if len(apart) < 4:
        return None
    usual = int(np.median(apart))
    # Some of the periodic steps may be missing from ``steps``, so multiples count.
    return usual if usual > 1 and (apart % usual == 0).mean() >= REGULAR else None


def _noise_costs(rest: Leaders, ranks: int) -> float:
    """Return the cost per step of being last by noise alone, for a typical rank among those that are not slow."""
    return float(np.median(_saved_by_each(rest, ranks))) if ranks > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Ranks with a larger excess than all others."""

    rows: list[int]
    """Rows of the ranks."""
    measure: Measure
    """Measure by which they are ahead."""
    p_value: float
    excess_us: float
    """Mean excess of the last of them."""
    noise_us: float
    """Mean excess that noise as lasting as that of the other ranks explains."""

    @property
    def certain(self) -> bool:
        """True if chance is excluded."""
        return self.p_value <= LIMIT and self.excess_us > self.noise_us


def _ahead(
    own: Stored, measures: Sequence[Measure], slow: NDArray[np.bool_], limit: float, *, certain: bool = False
) -> _Ahead | None:
    """Return the ranks with the widest gap to all others, or else the worst rank, among those not yet known to be ``slow``.

    ``None`` when no rank has a mean excess of ``limit``, or when no more ranks can be outliers. There are two tests, so p-values
    are corrected by ``looks``: of several ranks ahead of the others, then, if that is not certain, of the worst rank alone.
    ``certain``: only certain results count, so p-values that cannot make one certain are not computed.
    """
    left = np.flatnonzero(~slow)
    candidates = []
    for measure in measures:
        over = mean_excess(own, left, measure.at_most)
        most = min(len(own) // 2 - int(slow.sum()), int((over >= limit).sum()))
        if most >= 1:
            candidates.append((measure, over, most))
    best: _Ahead | None = None
    for measure, over, most in candidates:
        # The p-values account for the other measures, as any of them may name the rank.
        beside = [other.sums[:, left] for other, _, _ in candidates if other is not measure]
        found = _ahead_by(measure, beside, own, left, over, most=most, certain=certain)
        if found.certain:
            return found
        if best is None or found.p_value < best.p_value:
            best = found
    return best


def _ahead_by(
    measure: Measure,
    beside: Sequence[Matrix],
    own: Stored,
    left: NDArray[np.intp],
    over: NDArray[np.float64],
    *,
    most: int,
    certain: bool,
) -> _Ahead:
    """Return the ranks that are ahead of the others by one measure, among the rows ``left``.

    ``beside``: sums of the other measures, [blocks, left]. ``over``: mean excess, [left]. ``most``: number of ranks that may be
    slow. ``certain`` is that of ``_ahead``: the p-value is 1 where noise explains the excess.
    """
    sums = measure.sums[:, left]
    order = np.argsort(-sums.sum(axis=0), kind="stable")

    def look(count: int, chance: Callable[[], float]) -> _Ahead:
        rest = left[order[count:]]
        # A sample of the other ranks suffices to estimate the noise; one rank does not, so with two ranks both are used.
        some = rest[:: max(1, len(rest) // _ENOUGH_NOISE)] if len(rest) > 1 else left
        bound = chance_reaches(excess(own[some]).clip(-measure.at_most, measure.at_most).T, len(left))
        rows = [int(row) for row in left[order[:count]]]
        mean = float(over[order[count - 1]])
        p = 1.0 if certain and mean <= bound else min(1.0, looks(len(left)) * chance())
        return _Ahead(rows, measure, p, mean, bound)

    several, gap = widest_gap(sums.sum(axis=0), most)
    together = look(several, lambda: gap_p_value(sums, gap, beside))
    if together.certain:
        return together
    alone = look(1, lambda: p_value(sums, int(order[0]), beside))
    return alone if alone.certain or alone.p_value < together.p_value else together


_ENOUGH_NOISE: Final = 64
"""Number of ranks above which only a sample is used to estimate the noise."""


def by_chance_elsewhere(judged: OwnTimes, slow: Slow, others: Sequence[OwnTimes]) -> float:
    """Return the probability that a rank in ``others``, groups without a slow rank, has the excess of the worst of ``slow``.

    Add it to the p-value of ``slow``, as correction for testing several groups.
    """
    if not others:
        return 0.0
    mean = excess(judged.own)[judged.ranks.index(slow.ranks[0])].mean()
    return sum(share_reaching(block_sums(excess(one.own).T), float(mean) * one.own.shape[1]) for one in others)


@dataclass(frozen=True, slots=True)
class Suspect:
    """Ranks that would be named if chance could be excluded, with the evidence against the worst of them."""

    ranks: list[int]
    longer: int
    """Number of steps in which its own time was longer than the median of its peers."""
    far: int
    """Number of steps with large excess."""
    needed: int | None
    """Number of such steps that would be enough; ``None`` where there are as many already, and more are needed."""
    excess_us: float
    """Mean excess per step; long pauses count up to a limit where they dominate."""
    p_value: float
    noise_us: float
    """Mean excess that lasting noise may reach."""
    steps_needed: float | None
    """Number of steps after which it would usually be named if its excess stays the same; ``None``: no meaningful estimate."""


def too_short(judged: OwnTimes) -> Suspect | None:
    """Return ranks that made the others wait at a significant cost, but in too few steps to exclude chance; ``None`` without any.

    Call it where ``find_slow`` named no rank. One of three conditions must hold:

    - There are too few steps to name any rank.
    - The worst rank had a large excess in several blocks of steps, and no other rank ever had as much.
    - The p-value is at most ``UNCLEAR``.
    """
    own = judged.own
    steps = own.shape[1]
    limit = MINIMUM_EFFECT * judged.wall_us
    slow = np.zeros(len(own), dtype=bool)
    ahead = _ahead(own, measures_of(own, limit), slow, limit)
    if ahead is None:
        return None
    slow[ahead.rows] = True
    gain = _gain(judged, slow)
    if gain.saved.mean() - gain.by_noise_us < limit:
        return None
    over = excess(own)
    worst = over[ahead.rows[0]]
    far = _far(worst)
    blocks = int((block_sums(far[:, None].astype(np.float64)) > 0).sum())
    needed = blocks_needed(len(own))
    alone = blocks > 1 and over[~slow].max() < worst[far].min()
    if not (alone or min(BLOCKS, steps) < needed or ahead.p_value <= UNCLEAR):
        return None
    limited = worst.clip(-ahead.measure.at_most, ahead.measure.at_most)
    return Suspect(
        ranks=[judged.ranks[row] for row in ahead.rows],
        longer=int((worst > 0).sum()),
        far=int(far.sum()),
        needed=needed if far.sum() < needed else None,
        excess_us=float(limited.mean()),
        p_value=ahead.p_value,
        noise_us=ahead.noise_us,
        # Where chance is excluded already, another criterion fails, and more steps would not help.
        steps_needed=None if ahead.certain else steps_needed(limited, int(far.sum()), needed),
    )


def _sticks_out(gain: NDArray[np.float64], apart: NDArray[np.float64]) -> bool:
    """Return whether steps in which ``gain`` is at least the spread ``apart`` of the other ranks make up 70 % of the gain.

    Such outliers distinguish a rank that is last intermittently from noise that lasts for a while (a neighbour's job).
    """
    far = gain >= apart
    return bool(gain[far].sum() >= 0.7 * gain.sum())
