"""What healing slow ranks saves, and which of their steps are the slow ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.evidence.order import leaders
from rankscope.analysis.evidence.steps import Stored
from rankscope.analysis.inference.significance import block_slices
from rankscope.analysis.statistics import FEWEST_BATCHES


@dataclass(frozen=True, slots=True)
class Gain:
    """Time that healing slow ranks saves."""

    saved: NDArray[np.float64]
    """Time saved at each step, [steps]; negative where a healed rank would have been last by chance."""
    last: NDArray[np.bool_]
    """True at the steps in which one of the slow ranks costs most, [steps]."""
    estimated: float = 1.0
    """Share of the steps at which the time of a healed rank is an estimate; at the others it is as recorded."""


def gain_of(times: OwnTimes, slow: NDArray[np.bool_]) -> Gain:
    """Return the time that healing the ranks ``slow`` [ranks] saves: of whole steps, or of their collectives if that is more.

    This is the one definition of what healing saves. A healed rank is as it is in its other steps, where its slow steps are
    clearly apart from these. Else it is as the others are: at each step it takes the time of the rank in the middle, and the
    deviation that another rank had from it at another time.
    """
    own = times.own
    leading = leaders(own)
    healed, estimated = _healed(own, slow, leading.rows, leading.ahead)
    whole = Gain(leading.largest - healed, slow[leading.rows], estimated)
    if times.savings is None:
        return whole
    others = np.flatnonzero(~slow)
    together, each = times.savings.together(np.flatnonzero(slow).tolist()), times.savings.each()[others]
    met = Gain(together - float(np.median(each.mean(axis=1))), together > each.max(axis=0))
    return met if met.saved.mean() > whole.saved.mean() else whole


def _healed(
    own: Stored, slow: NDArray[np.bool_], last: NDArray[np.intp], ahead: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the longest own time at each step, [steps], were the ranks ``slow`` healed, and ``Gain.estimated``.

    ``last``, ``ahead``: the last rank at each step, and its lead.
    """
    others, steps = np.flatnonzero(~slow), own.shape[1]
    leading = leaders(own, others, [(len(others) - 1) // 2, len(others) // 2])
    longest, middle = leading.largest, leading.ordered.mean(axis=0, dtype=np.float64)
    sample = others[:: max(1, len(others) // _DRAWS)]
    apart = own[sample] - middle
    alike = 0
    replaced = np.zeros(steps, dtype=bool)
    for row in np.flatnonzero(slow).tolist():
        over = own[row] - middle
        usual = as_in_other_steps(over, apart if len(others) > 1 else -over[None])
        if usual is None:
            alike += 1
        else:
            np.maximum(longest, middle + usual, out=longest)
            replaced |= usual != over
    if not alike:
        return longest, float(replaced.mean())
    if len(others) < 2:
        # One other rank does not show how ranks vary. Each of two equal ranks costs half of their mean difference: here the lead
        # of the other rank or, if that is more, half of how far the difference of the two is from its middle.
        apart = own[0].astype(np.float64) - own[1]
        parts = [apart[part] for part in block_slices(steps)]
        noise = 0.5 * float(np.concatenate([np.abs(part - np.median(part)) for part in parts]).mean())
        costs: NDArray[np.float64] = longest + max(float(ahead[~slow[last]].sum() / steps), noise)
        return costs, 1.0
    # The middle of few ranks varies with them: deviations from it are too small by this.
    wider = np.sqrt(len(others) / (len(others) - 1))
    draws = -(-_DRAWS // alike)
    donors = others[np.linspace(0, len(others), min(draws * alike, len(others)), endpoint=False).astype(int)]
    healed = np.zeros(steps)
    for draw in range(draws):
        deviation = np.full(steps, -np.inf)
        for number in range(draw * alike, (draw + 1) * alike):
            donor = donors[number % len(donors)]
            shift = steps * (1 + number // len(donors)) // (2 + draws * alike // len(donors))
            np.maximum(deviation, np.roll(own[donor] - middle, shift), out=deviation)
        healed += np.maximum(longest, middle + wider * deviation) / draws
    return healed, 1.0


_DRAWS: Final = 16
"""Number of deviations, at least, that the saving is averaged over."""

_APART: Final = 3.0
"""Least gap between the excess in slow steps and in a rank's other steps, in standard deviations of these. It is that between the
lower tenth and the upper tenth: steps of one kind, cut in two, have nearly none."""

_OTHERS: Final = 0.2
"""Minimum share of a rank's steps that are not slow for them to show how it is without the fault."""


_OF_OTHERS: Final = 0.25
"""Maximum share of such steps on the other ranks, in multiples of that on the rank itself: more are usual for any rank."""

_REST: Final = 0.1
"""Maximum share of a rank's excess in its other steps: else the fault is in these, too."""


def as_in_other_steps(over: NDArray[np.float64], of_others: Stored) -> NDArray[np.float64] | None:
    """Return the excess ``over`` of a rank over the middle, with that of its other steps in its slow steps.

    ``of_others``: that of some of the other ranks, [ranks, steps]. ``None`` where its slow steps are not clearly apart from the
    others, or are nearly all, or where the other ranks have many such steps, too.
    """
    far = far_steps(over)
    if not far.any() or far.mean() > 1 - _OTHERS or (~far).sum() < FEWEST_BATCHES:
        return None
    others = over[~far]
    gap = np.quantile(over[far], 0.1) - np.quantile(others, 0.9)
    if gap < _APART * others.std() or others.sum() > _REST * over.sum():
        return None
    if (of_others >= over[far].min()).mean() > _OF_OTHERS * far.mean():
        return None
    usual = over.copy()
    usual[far] = np.resize(np.roll(others, len(others) // 2), int(far.sum()))
    return usual


def far_steps(over: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the steps that make up a rank's excess: those with at least half of its mean, weighted by the excess itself."""
    positive = np.maximum(over, 0.0)
    total = positive.sum()
    far: NDArray[np.bool_] = over >= 0.5 * (positive**2).sum() / total if total > 0 else np.zeros(len(over), dtype=bool)
    return far


REGULAR: Final = 0.75
"""Minimum share of distances between slow steps that are a multiple of their median, for the steps to be periodic."""


def period(steps: NDArray[np.int64]) -> int | None:
    """Return the period of ascending ``steps`` if most distances are multiples of it; ``None`` otherwise or below 5 steps."""
    apart = np.diff(steps)
    if len(apart) < 4:
        return None
    usual = int(np.median(apart))
    # Some of the periodic steps may be missing from ``steps``, so multiples count.
    return usual if usual > 1 and (apart % usual == 0).mean() >= REGULAR else None
