"""What healing slow ranks saves, and which of their steps are the slow ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.evidence.order import leaders
from rankscope.analysis.evidence.step_table.steps import Stored
from rankscope.analysis.inference.judging.significance import block_slices
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

    @property
    def mean_us(self) -> float:
        """Time saved per step."""
        return max(0.0, float(self.saved.mean()))


def gain_of(times: OwnTimes, slow: NDArray[np.bool_]) -> Gain:
    """Return the time that healing the ranks ``slow`` [ranks] saves."""
    return Healing(times, int(slow.sum())).gain(slow)


class Healing:
    """What healing ranks of ``times`` saves, for any choice of few of them. This is the one definition of it."""

    def __init__(self, times: OwnTimes, most: int, *, many_calls: bool = False) -> None:
        """``most``: largest number of ranks healed together, fewer than all. ``many_calls``: to ``gain``, are expected."""
        count = len(times.own)
        self._times = times
        # ``gain`` reads whole rows, which may be far apart in memory: a copy takes as long as some calls.
        self._own = np.ascontiguousarray(times.own) if many_calls else times.own
        # Without so many ranks, the middle and the longest own time are at most so many places from those of all ranks.
        self._middle = range((count - most - 1) // 2, (count + most) // 2 + 1)
        self._longest = range(count - most - 1, count)
        self._leading = leaders(times.own, places=[*self._middle, *self._longest])

    @cached_property
    def _of_each(self) -> NDArray[np.float64]:
        """Savings of each rank alone at the collectives of each step, [ranks, steps]."""
        assert self._times.savings is not None
        return self._times.savings.each()

    def gain(self, slow: NDArray[np.bool_]) -> Gain:
        """Return the time that healing the ranks ``slow`` [ranks] saves: of whole steps, or of their collectives if that is more.

        A healed rank is as it is in its other steps, where its slow steps are clearly apart from these. Else it is as the others
        are: at each step it takes the time of the rank in the middle, and the deviation that another rank had from it at another
        time.
        """
        healed, estimated = self._step_without(slow)
        step_gain = Gain(self._leading.largest - healed, slow[self._leading.rows], estimated)
        if self._times.savings is None:
            return step_gain
        saved_together, each = self._times.savings.together(np.flatnonzero(slow).tolist()), self._of_each[~slow]
        met = Gain(saved_together - float(np.median(each.mean(axis=1))), saved_together > each.max(axis=0))
        return met if met.saved.mean() > step_gain.saved.mean() else step_gain

    def _of_others(self, slow: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the longest and the middle own time of the ranks that are not ``slow``, both [steps]."""
        ascending = np.sort(self._own[slow], axis=0)
        middle, longest = np.split(self._leading.ordered, [len(self._middle)])
        steps, others = np.arange(longest.shape[1]), int((~slow).sum())
        middles = []
        for place in ((others - 1) // 2, others // 2):
            at = np.full(len(steps), place - self._middle.start)
            for own in ascending:
                at += own <= middle[at, steps]
            middles.append(middle[at, steps])
        at = np.full(len(steps), len(longest) - 1)
        for own in ascending[::-1]:
            at -= own >= longest[at, steps]
        return longest[at, steps].astype(np.float64), np.mean(middles, axis=0, dtype=np.float64)

    def _step_without(self, slow: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
        """Return the longest own time at each step, [steps], were the ranks ``slow`` healed, and ``Gain.estimated``."""
        own = self._own
        others, steps = np.flatnonzero(~slow), own.shape[1]
        longest, middle = self._of_others(slow)
        sample = others[:: max(1, len(others) // _DRAWS)]
        deviations = own[sample] - middle
        alike = 0
        replaced = np.zeros(steps, dtype=bool)
        for row in np.flatnonzero(slow).tolist():
            excess = own[row] - middle
            as_usual = as_in_other_steps(excess, deviations if len(others) > 1 else -excess[None])
            if as_usual is None:
                alike += 1
            else:
                np.maximum(longest, middle + as_usual, out=longest)
                replaced |= as_usual != excess
        if not alike:
            return longest, float(replaced.mean())
        if len(others) < 2:
            return longest + self._wait_of_two(slow), 1.0
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

    def _wait_of_two(self, slow: NDArray[np.bool_]) -> float:
        """Return the time that each of two equal ranks costs. One other rank does not show how ranks vary.

        It is half of their mean difference: the lead of the rank that is not ``slow`` or, if that is more, half of how far the
        difference of the two is from its middle.
        """
        own, leading = self._own, self._leading
        difference = own[0].astype(np.float64) - own[1]
        parts = [difference[part] for part in block_slices(len(difference))]
        noise = 0.5 * float(np.concatenate([np.abs(part - np.median(part)) for part in parts]).mean())
        return max(float(leading.ahead[~slow[leading.rows]].sum() / len(difference)), noise)


def rows_by_host(ranks: Sequence[int], hosts: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the rows of each host of several of the ``ranks``; empty where all are on one. ``hosts``: host of each, where known.

    A host is more than a rank where it has several, and there are other hosts.
    """
    places: dict[str, list[int]] = {}
    for row, rank in enumerate(ranks):
        if rank in hosts:
            places.setdefault(hosts[rank], []).append(row)
    return {host: rows for host, rows in places.items() if len(rows) > 1} if len(places) > 1 else {}


def taking_part(excess: NDArray[np.float64], rows: Sequence[int]) -> list[int]:
    """Return the ``rows`` of a host that take part in its slowness. ``excess``: mean excess of each rank, [ranks]."""
    of_rows = excess[rows]
    most = of_rows[of_rows >= np.median(of_rows)].mean()
    return [row for row, excess_us in zip(rows, of_rows.tolist(), strict=True) if excess_us >= _TAKES_PART * most]


_TAKES_PART: Final = 0.25
"""Minimum mean excess of a rank of a slow host that is named with it, as a share of the mean over those of its ranks that have
more than the median."""

_DRAWS: Final = 16
"""Number of deviations, at least, that the saving is averaged over."""

_LEAST_GAP: Final = 3.0
"""Least gap between the excess in slow steps and in a rank's other steps, in standard deviations of these. It is that between the
lower tenth and the upper tenth: steps of one kind, cut in two, have nearly none."""

_OTHERS: Final = 0.2
"""Minimum share of a rank's steps that are not slow for them to show how it is without the fault."""


_OF_OTHERS: Final = 0.25
"""Maximum share of such steps on the other ranks, in multiples of that on the rank itself: more are usual for any rank."""

_MOST_IN_OTHER_STEPS: Final = 0.1
"""Maximum share of a rank's excess in its other steps: else the fault is in these, too."""


def as_in_other_steps(excess: NDArray[np.float64], of_others: Stored) -> NDArray[np.float64] | None:
    """Return the ``excess`` of a rank over the middle, [steps], with that of its other steps in its slow steps.

    ``of_others``: that of some of the other ranks, [ranks, steps]. ``None`` where its slow steps are not clearly apart from the
    others, or are nearly all, or where the other ranks have many such steps, too.
    """
    slow_steps = far_steps(excess)
    if not slow_steps.any() or slow_steps.mean() > 1 - _OTHERS or (~slow_steps).sum() < FEWEST_BATCHES:
        return None
    others = excess[~slow_steps]
    gap = np.quantile(excess[slow_steps], 0.1) - np.quantile(others, 0.9)
    if gap < _LEAST_GAP * others.std() or others.sum() > _MOST_IN_OTHER_STEPS * excess.sum():
        return None
    if (of_others >= excess[slow_steps].min()).mean() > _OF_OTHERS * slow_steps.mean():
        return None
    usual = excess.copy()
    usual[slow_steps] = np.resize(np.roll(others, len(others) // 2), int(slow_steps.sum()))
    return usual


def far_steps(excess: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the steps that make up a rank's excess: those with at least half of its mean, weighted by the excess itself."""
    positive = np.maximum(excess, 0.0)
    total = positive.sum()
    is_outlying: NDArray[np.bool_] = (
        excess >= 0.5 * (positive**2).sum() / total if total > 0 else np.zeros(len(excess), dtype=bool)
    )
    return is_outlying


REGULAR: Final = 0.75
"""Minimum share of distances between slow steps that are a multiple of their median, for the steps to be periodic."""


def period(steps: NDArray[np.int64]) -> int | None:
    """Return the period of ascending ``steps`` if most distances are multiples of it; ``None`` otherwise or below 5 steps."""
    distances = np.diff(steps)
    if len(distances) < 4:
        return None
    usual = int(np.median(distances))
    # Some of the periodic steps may be missing from ``steps``, so multiples count.
    return usual if usual > 1 and (distances % usual == 0).mean() >= REGULAR else None
