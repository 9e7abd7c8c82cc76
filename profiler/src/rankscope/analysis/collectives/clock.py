"""Clock offsets of ranks, from matched collectives: these end on all their ranks at once, so their ends show the offsets.

Clocks are linked by collectives with ranks on several hosts. The first reference is the steadiest clock of those with most
collectives: it gives a time to its collectives. The clocks with most collectives of known time come next: they are fitted to
these (``clock_series``), and give a time to more collectives. The median of all clocks is then the common clock, so that one
clock that was set or drifts does not make all others seem to. Each clock is fitted to it once more, by all its collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals, Flags, Numbers
from rankscope.analysis.collectives.clock_series import (
    ClockCourse,
    Floats,
    Series,
    Stretch,
    at_times,
    course_of,
    drift_ppm,
    fit_series,
    keeps_one,
    seen_at,
)
from rankscope.analysis.collectives.matching import Matching
from rankscope.analysis.result.collectives import RankClock
from rankscope.analysis.trace.intervals import medians


class Clocks(msgspec.Struct, frozen=True):
    """Offsets to subtract from the times of each rank, and the uncertainty that remains."""

    offset_ns: dict[int, int] = msgspec.field(default_factory=dict)
    """Per rank: the constant offset of its clock. Where the offset changes, its median over the rank's collectives."""
    residual_ns: float | None = None
    """Median over collectives of the spread (last minus first) of the corrected ends; ``None`` without a match."""
    courses: dict[int, ClockCourse] = msgspec.field(default_factory=dict)
    """Offset over time, for ranks whose clock drifts or was set."""
    rank_clocks: dict[int, RankClock] = msgspec.field(default_factory=dict)
    """Clock to report for each rank that is in a match."""
    fitted: bool = False
    """True if matches link several clocks, so that these were fitted to each other."""

    def offset_at(self, rank: int, unix_ns: int) -> int:
        """Return the offset to subtract from a time of ``rank``."""
        course = self.courses.get(rank)
        return self.offset_ns.get(rank, 0) if course is None else course.offset_at(unix_ns)

    def correct(self, rank: int, unix_ns: int) -> int:
        """Convert a time of ``rank`` to the common clock."""
        return unix_ns - self.offset_at(rank, unix_ns)

    def corrected(self, rank: Numbers, unix_ns: Numbers) -> Numbers:
        """Convert times of ranks to the common clock."""
        ranks, place = np.unique(rank, return_inverse=True)
        offsets = np.array([self.offset_ns.get(rank_number, 0) for rank_number in ranks.tolist()], dtype=np.int64)
        common = unix_ns - offsets[place]
        for at, rank_number in enumerate(ranks.tolist()):
            if (course := self.courses.get(rank_number)) is not None:
                of_rank = np.flatnonzero(place == at)
                common[of_rank] = unix_ns[of_rank] - np.floor(course.offsets(unix_ns[of_rank])).astype(np.int64)
        return common

    def seen_at(self, rank: int, common_ns: int) -> int:
        """Convert a time of the common clock to the clock of ``rank``."""
        course = self.courses.get(rank)
        return common_ns + self.offset_ns.get(rank, 0) if course is None else course.seen_at(common_ns)

    def offset_range(self) -> tuple[int, int]:
        """Return the smallest and the largest offset of any rank at any time; 0 is always within this range."""
        moving = [offset for course in self.courses.values() for offset in course.offset_ns]
        return min([0, *self.offset_ns.values(), *moving]), max([0, *self.offset_ns.values(), *moving])


TOLERANCE_NS: Final = 1_000_000
"""Possible error of a clock's correction: an order of events counts as impossible only if it is off by more."""


def fit_clocks(matches: Arrivals, names: Mapping[int, str] | None = None) -> Clocks:
    """Fit each clock against the others, from matched ends.

    ``names``: rank to the name of its clock, which ranks of one kernel share. A rank without a name has a clock of its own.
    """
    if not len(matches):
        return Clocks()
    ranks, place = np.unique(matches.rank, return_inverse=True)
    keys = [(names or {}).get(rank, rank) for rank in ranks.tolist()]
    numbers = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    clock_of = np.array([numbers[key] for key in keys])
    base = int(matches.end_ns.min())
    fitted: dict[int, Series] = {}
    # With a single clock there is nothing to correct, and fitting would take scheduling noise for an offset.
    if len(numbers) > 1:
        table, window = _table(matches, clock_of[place], base)
        for rows, clocks in _linked(table):
            series = _fit_linked(table[np.ix_(rows, clocks)], window[rows])
            fitted |= dict(zip(clocks.tolist(), series, strict=True))
    return _clocks(matches, clock_of, fitted, base)


def _table(matches: Arrivals, clock: Numbers, base: int) -> tuple[Floats, Numbers]:
    """Return [matches, clocks]: the median end of a clock's ranks, NaN where it has none; and the window of each match.

    Only matches of two clocks or more count. Consecutive steps are in the same window. Times are since ``base``, which keeps
    float64 exact to the nanosecond. ``clock``: of each arrival.
    """
    steps, position = np.unique(matches.step, return_inverse=True)
    window: Numbers = np.cumsum(np.diff(steps, prepend=steps[0]) > 1, dtype=np.int64)[position]
    width = int(clock.max()) + 1
    cell = matches.instance * width + clock
    several = matches.most(cell) > matches.least(cell)
    chosen: Flags = np.repeat(several, matches.count)
    cell, group = np.unique(cell[chosen], return_inverse=True)
    row, column = np.divmod(cell, width)
    table: Floats = np.full((int(several.sum()), width), np.nan)
    ends = (matches.end_ns[chosen] - base).astype(np.float64)
    if len(cell):
        table[(np.cumsum(several) - 1)[row], column] = medians(ends, group)
    return table, window[several]


def _linked(table: Floats) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield rows and columns of clocks that matches link, one island after the other."""
    present = np.isfinite(table)
    unlinked: Flags = np.logical_or.reduce(present, axis=0)
    while unlinked.any():
        clocks: Flags = np.arange(len(unlinked)) == unlinked.argmax()
        rows: Flags = np.zeros(len(table), dtype=np.bool_)
        while (more := present[:, clocks].any(axis=1) & ~rows).any():
            rows |= more
            clocks |= present[more].any(axis=0)
        yield np.flatnonzero(rows), np.flatnonzero(clocks)
        unlinked &= ~clocks


def _fit_linked(table: Floats, window: Numbers) -> list[Series]:
    """Fit each clock of ``table`` against the median of them all."""
    rough, time = _spread(table, window)
    offsets = np.column_stack([at_times(series, time) for series in rough])
    time = np.nanmedian(table - offsets, axis=1)
    if len(rough) > 2:
        # A change that most clocks share is one of the reference, so it moves the time. Constant offsets do not.
        time += np.median(offsets - np.median(offsets, axis=0), axis=1)
    fitted = [_fit(ends, time, window) for ends in table.T]
    level = float(np.median([np.median(at_times(series, time)) for series in fitted]))
    return [[replace(stretch, at=stretch.at + level, offset=stretch.offset - level) for stretch in series] for series in fitted]


def _spread(table: Floats, window: Numbers) -> tuple[list[Series], Floats]:
    """Return the offsets of all clocks, and the time of every match, relative to one of the clocks."""
    present = np.isfinite(table)
    first = _steadiest(table)
    time = table[:, first].copy()
    series: dict[int, Series] = {first: [Stretch(np.array([0.0, 1.0]), np.zeros(2), None)]}
    while len(series) < table.shape[1]:
        links = present[np.isfinite(time)].sum(axis=0)
        links[list(series)] = 0
        strong = np.flatnonzero(2 * links >= links.max()).tolist()
        series |= {clock: _fit(table[:, clock], time, window) for clock in strong}
        for clock in strong:
            new = np.isnan(time) & present[:, clock]
            time[new] = table[new, clock] - seen_at(series[clock], table[new, clock])
    return [series[clock] for clock in range(table.shape[1])], time


def _steadiest(table: Floats) -> int:
    """Return the clock that moves least against the others, among the clocks with most matches."""
    present = np.isfinite(table)
    count = present.sum(axis=0)
    busy = np.flatnonzero(10 * count >= 9 * count.max())
    rows = present[:, busy].all(axis=1)
    if not rows.any():
        return int(count.argmax())
    deviation = table[rows][:, busy]
    deviation -= np.median(deviation, axis=1, keepdims=True)
    deviation -= np.median(deviation, axis=0)
    deviation -= np.median(deviation, axis=1, keepdims=True)
    return int(busy[np.abs(deviation).mean(axis=0).argmin()])


def _fit(ends: Floats, time: Floats, window: Numbers) -> Series:
    """Fit one clock by its ends of the matches that have a time."""
    rows = np.flatnonzero(np.isfinite(ends) & np.isfinite(time))
    rows = rows[np.argsort(time[rows], kind="stable")]
    return fit_series(time[rows], (ends - time)[rows], window[rows])


def _clocks(matches: Arrivals, clock_of: Numbers, fitted: Mapping[int, Series], base: int) -> Clocks:
    ranks, place = np.unique(matches.rank, return_inverse=True)
    offset = np.zeros(len(place))
    courses: dict[int, ClockCourse] = {}
    for clock, series in fitted.items():
        of_clock = clock_of[place] == clock
        if keeps_one(series):
            offset[of_clock] = series[0].offset[0]
        else:
            courses[clock] = course_of(series, base)
            offset[of_clock] = courses[clock].offsets(matches.end_ns[of_clock])
    corrected = (matches.end_ns - base).astype(np.float64) - np.rint(offset)
    spread = matches.most(corrected) - matches.least(corrected)
    deviation = medians(np.abs(corrected - medians(corrected, matches.instance)[matches.instance]), place)
    middle = medians(offset, place)
    return Clocks(
        offset_ns={rank: round(float(middle[at])) for at, rank in enumerate(ranks.tolist())},
        residual_ns=float(np.median(spread)),
        courses={rank: courses[clock] for rank, clock in zip(ranks.tolist(), clock_of.tolist(), strict=True) if clock in courses},
        rank_clocks={
            rank: RankClock(
                offset_us=round(float(middle[at])) / 1000,
                drift_ppm=drift_ppm(fitted[clock]) if clock in fitted else None,
                settings=len(fitted[clock]) if clock in fitted else 1,
                residual_us=float(deviation[at]) / 1000,
            )
            for at, (rank, clock) in enumerate(zip(ranks.tolist(), clock_of.tolist(), strict=True))
        },
        fitted=bool(fitted),
    )


def consistent(matching: Matching, clocks: Clocks) -> Matching:
    """Remove the matches that cannot be one collective, because a rank left before the last one arrived.

    Traces of CPU collectives do not record the process group, so collectives of several groups may have been matched.
    """
    matches = matching.matches
    last_arrival = matches.most(clocks.corrected(matches.rank, matches.arrival_ns))
    possible = matches.least(clocks.corrected(matches.rank, matches.end_ns)) >= last_arrival - TOLERANCE_NS
    dropped = len(matches) - int(possible.sum())
    if not dropped:
        return matching
    return msgspec.structs.replace(
        matching,
        matches=matches.chosen(possible),
        unmatched=matching.unmatched + dropped,
        unmatched_by={**matching.unmatched_by, "impossible": dropped},
        method=matching.method if possible.any() else None,
    )
