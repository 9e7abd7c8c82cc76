"""Ranks that count their steps differently, because they did steps that the others did not: found by the starts of steps.

Each rank counts its own steps. An extra optimizer step on one rank, or DDP's ``join`` with uneven inputs, makes the numbers drift
apart: step 100 of one rank then runs while the others are in step 98. Ranks that train together start and end a step at the same
time, so times show which steps belong together. They do so only on CPUs: a host with a device runs ahead of it.

The steps of such a rank get the numbers that a reference rank gave to the steps of the same time, if nearly all of these have a
counterpart. A step without one is added to the next: together they are what the rank did in the step of the reference. Otherwise
the rank is not comparable, unless its lag returns to less than a step: ranks that meet every N steps only run by themselves
between meetings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.peers import stage_of
from rankscope.analysis.evidence.step_table.sampled_starts import FIRST, Floats, Ints, SampledStarts
from rankscope.analysis.evidence.step_table.step_numbers import ALL_ALIKE, NewNumbers, SeparateRank, StepNumbers
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.runs.records import RankInfo

_SETTLED: Final = slice(3, 13)
"""Samples that show the lag at the beginning: those before are of the warm-up."""
_FEWEST: Final = 16
"""Least number of steps of a rank that is looked at."""

_LAG: Final = 0.75
"""Lag, in steps, from which a rank may be in another step than the number says."""
_LASTING: Final = 3
"""Number of samples in a row with such a lag: a pause of one rank gives it in one or two."""
_LASTING_STEPS: Final = 8
"""Number of steps in a row with other numbers from which they count."""
_LARGEST_FRACTION: Final = 0.15
"""Largest distance from a whole number of steps of a lag at the beginning that is an offset of numbers. Other lags below
``_PHASE`` are those of ranks that end their steps at another place, such as a later stage."""
_PHASE: Final = 1.5
_JUMP: Final = 0.5
"""Time between two steps that is in neither, in steps, from which a clock was set."""
_GAIN: Final = 0.1
"""Share of a distance between starts by which the difference of two clocks is corrected."""
_CLOCK_DRIFT: Final = 2e-4
"""Largest relative difference of the speeds of two hosts' clocks."""
_TOGETHER: Final = 0.25
"""Largest distance between the ends of two ranks in one step, as a share of the step."""
_CLEAR: Final = 0.8
"""Least share of a rank's steps with a counterpart from which they get its numbers."""


def _samples_of(table: StepTable) -> SampledStarts:
    if table.start_unix_ns is not None:
        return SampledStarts.of_matrix(table.steps, table.start_unix_ns)
    assert table.samples is not None
    return table.samples


def find_step_numbers(table: StepTable, infos: Mapping[int, RankInfo]) -> StepNumbers:
    """Return the ranks whose numbers of steps differ from those of the others, by the starts of the steps."""
    ranks: list[int] = table.ranks.tolist()
    rows = [row for row, rank in enumerate(ranks) if rank in infos and infos[rank].device_kind == "cpu"]
    if len(rows) < 2:
        return ALL_ALIKE
    samples = _samples_of(table)
    rows = [row for row in rows if _is_usable(samples.starts[row])]
    if len(rows) < 2:
        return ALL_ALIKE
    case = _ComparedStarts(table, samples, [infos[ranks[row]] for row in rows], rows)
    first = case.first()
    flagged = case.look(first)
    if not flagged.any():
        return ALL_ALIKE
    middle = case.middle()
    if middle != first:
        flagged = case.look(middle)
    changed: dict[int, NewNumbers] = {}
    new_numbers: dict[int, SeparateRank] = {}
    for place in np.flatnonzero(flagged).tolist():
        comparison = case.compare(place)
        if isinstance(comparison, NewNumbers):
            changed[ranks[rows[place]]] = comparison
        elif comparison is not None:
            new_numbers[ranks[rows[place]]] = comparison
    return StepNumbers(ranks[rows[middle]], changed, new_numbers) if changed or new_numbers else ALL_ALIKE


def _is_usable(starts: Floats) -> bool:
    """Return whether there are enough starts, on a clock that was not turned back."""
    finite = starts[np.isfinite(starts)]
    return len(finite) >= _FEWEST and bool((np.diff(finite) > 0).all())


class _ComparedStarts:
    """Starts of the ranks of a table, compared with those of a reference rank."""

    def __init__(self, table: StepTable, samples: SampledStarts, infos: Sequence[RankInfo], rows: list[int]) -> None:
        self._table, self._rows, self._infos = table, rows, infos
        self._origin = float(np.nanmin(samples.starts[rows]))
        self._numbers, self._at = samples.steps[rows], samples.starts[rows] - self._origin
        self._from_start = self._numbers[:, 0] <= FIRST
        self.lag = np.zeros(0)

    def starts(self, place: int) -> tuple[Ints, Floats]:
        """Return the numbers of the steps of a rank and their starts, ascending."""
        starts = self._table.starts(self._rows[place])
        recorded = starts > 0
        at = starts[recorded].astype(np.float64) - self._origin
        return self._table.steps[recorded], np.maximum.accumulate(at)

    def first(self) -> int:
        """Return the first rank on the clock that most ranks share."""
        clocks = [info.clock_name for info in self._infos]
        return clocks.index(Counter(clocks).most_common(1)[0][0])

    def look(self, reference: int) -> NDArray[np.bool_]:
        """Compare all ranks with a reference rank. Return those whose lag lasts, [ranks]."""
        self._reference = reference
        self._known_steps, self._times = self.starts(reference)
        self._step_ns = float(np.median(np.diff(self._times))) or 1.0
        self._reference_jumps = self._jumps(reference)
        expected = np.interp(self._numbers, self._known_steps, self._times, left=np.nan, right=np.nan)
        self.offset = self._offsets(self._at - expected)
        self.lag = self._place(self._at - self.offset) - self._numbers
        late = np.abs(self.lag) >= _LAG
        lasting = late[:, : 1 - _LASTING].copy()
        for shift in range(1, _LASTING):
            lasting &= late[:, shift : late.shape[1] - _LASTING + 1 + shift]
        flagged: NDArray[np.bool_] = np.logical_or.reduce(lasting, axis=1)
        return flagged

    def middle(self) -> int:
        """Return the rank that is nearest to the middle of all: most ranks agree with it. Of two, that with fewer steps."""
        lag = np.round(self.lag)
        with np.errstate(invalid="ignore"):
            middle = np.nanmedian(np.where(np.isfinite(lag).any(axis=0), lag, 0), axis=0)
            distance = np.nansum(np.abs(lag - middle), axis=1) / np.maximum(1, np.isfinite(lag).sum(axis=1))
        clock = self._infos[self._reference].clock_name
        distance[[info.clock_name != clock for info in self._infos]] = np.inf
        nearest = np.flatnonzero(distance <= distance.min() + _TOGETHER)
        return int(nearest[np.nanmax(self._numbers[nearest], axis=1).argmin()])

    def compare(self, place: int) -> NewNumbers | SeparateRank | None:
        """Return the numbers of a rank by the times of its steps; how far it is apart; or ``None``: neither."""
        if self._has_jumped(place):
            return None
        own, starts = self.starts(place)
        is_seen = np.isfinite(self.offset[place])
        starts = starts - np.interp(starts, self._at[place][is_seen], self.offset[place][is_seen])
        # Ranks end a step together, after its communication. An extra step comes before the one that all do.
        at, times = starts + self._walls_ns(place, own), self._times + self._walls_ns(self._reference, self._known_steps)
        at, times = np.maximum.accumulate(at), np.maximum.accumulate(times)
        nearest = _nearest(times, at)
        gaps = np.diff(times)
        gap = np.maximum(np.append(gaps, gaps[-1]), np.insert(gaps, 0, gaps[0]))
        is_pair = _nearest(at, times)[nearest] == np.arange(len(at))
        is_pair &= np.abs(at - times[nearest]) <= _TOGETHER * gap[nearest]
        inside = ((at >= times[0]) & (at <= times[-1])).sum()
        of_reference = ((times >= at[0]) & (times <= at[-1])).sum()
        if is_pair.sum() >= _CLEAR * min(inside, of_reference):
            new = _joined(_filled(own, np.where(is_pair, self._known_steps[nearest], -1), self._known_steps))
            return NewNumbers(own, new) if _longest(new[new >= 0] != own[new >= 0]) >= _LASTING_STEPS else None
        lag = self._place(starts) - own
        common = np.flatnonzero(np.isfinite(lag))
        near_steps = np.flatnonzero(np.abs(lag[common]) < _LAG)
        distant_steps = common[near_steps[-1] + 1 :] if len(near_steps) else common
        if len(distant_steps) < max(_FEWEST, len(common) / 2):
            return None
        example = distant_steps[len(distant_steps) // 2]
        return SeparateRank(int(own[example]), int(self._known_steps[nearest[example]]))

    def _has_jumped(self, place: int) -> bool:
        """Return whether the lag of a rank is that of a clock that was set: such a jump is in no step."""
        jumps, of_reference = self._jumps(place), self._reference_jumps
        if not jumps.any() and not of_reference.any():
            return False
        own, at = self.starts(place)
        steady = self._times - of_reference
        lag = np.interp(at - jumps - self.offset[place][0], steady, self._known_steps, left=np.nan, right=np.nan) - own
        return bool(np.nanmean(np.abs(lag) < _LAG) >= _CLEAR) if np.isfinite(lag).any() else False

    def _jumps(self, place: int) -> Floats:
        """Return how far the clock of a rank has jumped until each step: by the time between two steps that is in neither."""
        row = self._rows[place]
        numbers, at = self.starts(place)
        profiled = self._table.profiled[row, np.searchsorted(self._table.steps, numbers)]
        between = np.diff(at) - self._walls_ns(place, numbers)[:-1]
        # Between profiled steps the recorder works, and steps without a record are no jump.
        between[(np.abs(between) < _JUMP * self._step_ns) | (np.diff(numbers) != 1) | profiled[1:] | profiled[:-1]] = 0.0
        offsets: Floats = np.cumsum(np.insert(between, 0, 0.0))
        return offsets

    def _walls_ns(self, place: int, numbers: Ints) -> Floats:
        """Return the durations of a rank's steps."""
        walls = self._table.of_rank("wall_us", self._rows[place])
        return walls[np.searchsorted(self._table.steps, numbers)].astype(np.float64) * 1e3

    def _place(self, at: Floats) -> Floats:
        """Return the number of the reference's step at some times, in fractions of steps; NaN before its first and after."""
        places: Floats = np.interp(at, self._times, self._known_steps, left=np.nan, right=np.nan)
        return places

    def _offsets(self, late_ns: Floats) -> Floats:
        """Return the difference of each rank's clock, and of where it ends a step, [ranks, samples].

        ``late_ns``: its starts against those of the same number of the reference. Numbers agree at the beginning of an attempt.
        """
        reference = self._infos[self._reference]
        first = np.array([_median(row[_SETTLED]) for row in late_ns])
        others = np.array([info.clock_name != reference.clock_name for info in self._infos])
        stages = np.array([stage_of(info) != stage_of(reference) for info in self._infos])
        steps = first / self._step_ns
        is_phase = stages | (self._from_start & (np.abs(steps - np.round(steps)) > _LARGEST_FRACTION))
        is_phase &= np.abs(steps) < _PHASE
        offset: Floats = np.where(others | is_phase, np.nan_to_num(first), 0.0)[:, None] + np.zeros(late_ns.shape[1])
        offset[others] = self._clock_drift(offset[others], self._at[others], self._numbers[others])
        return offset

    def _clock_drift(self, offset: Floats, at: Floats, numbers: Floats) -> Floats:
        """Return the offsets of clocks that move slowly: starts stay at the same place in some step of the reference."""
        first = offset[:, 0].copy()
        now = first.copy()
        for place in range(_SETTLED.stop, at.shape[1]):
            lag = self._place(at[:, place] - now) - numbers[:, place]
            within = np.clip(np.nan_to_num(lag - np.round(lag)), -_TOGETHER, _TOGETHER)
            most = _CLOCK_DRIFT * np.nan_to_num(at[:, place] - at[:, 0]) + _TOGETHER * self._step_ns
            now = first + np.clip(now + _GAIN * within * self._step_ns - first, -most, most)
            offset[:, place] = now
        return offset


def _longest(mask: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of true values."""
    ends = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    return int((ends[1::2] - ends[::2]).max(initial=0))


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else np.nan


def _nearest(sorted_times: Floats, times: Floats) -> NDArray[np.intp]:
    """Return the place of the nearest of ``sorted_times`` to each of ``times``."""
    after = np.searchsorted(sorted_times, times).clip(1, len(sorted_times) - 1)
    before = after - 1
    return np.where(times - sorted_times[before] <= sorted_times[after] - times, before, after)


def _filled(own: Ints, new: Ints, numbers: Ints) -> Ints:
    """Return ``new`` with the numbers of steps between two that are as far ahead: a pause may have hidden them."""
    places = np.arange(len(own))
    paired = np.flatnonzero(new >= 0)
    before = paired[np.searchsorted(paired, places, side="right").clip(1) - 1]
    after = paired[np.searchsorted(paired, places).clip(max=len(paired) - 1)]
    ahead = (own - new)[before]
    expected = own - ahead
    free = (new < 0) & (ahead == (own - new)[after]) & np.isin(expected, numbers) & ~np.isin(expected, new[paired])
    return np.where(free, expected, new)


def _joined(new: Ints) -> Ints:
    """Return ``new`` with the number of the next step for steps without one, if no step of the reference lies between."""
    paired = np.flatnonzero(new >= 0)
    after = np.searchsorted(paired, np.arange(len(new)))
    inside = (after > 0) & (after < len(paired)) & (new < 0)
    following = new[paired[after.clip(max=len(paired) - 1)]]
    previous = new[paired[after.clip(1) - 1]]
    # Both are numbers of the reference. Records that it lost would leave a gap between them.
    return np.where(inside & (following == previous + 1), following, new)
