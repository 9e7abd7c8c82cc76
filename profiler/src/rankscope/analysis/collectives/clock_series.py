"""Offset of one clock over time, fitted to many noisy readings.

The fit uses medians and least absolute deviations, because some readings are outliers. First the series is cut where the clock
was set: at jumps that no drift explains. Each stretch between two cuts gets the simplest model that its readings support: an
offset; an offset and a drift; or, for a clock whose pace is being adjusted, straight lines from window to window. Each parameter
is penalised by Schwarz's criterion for Laplace noise: 2 n ln(mean absolute deviation) + weight · parameters · ln n.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rankscope.analysis.trace.intervals import medians

Floats = NDArray[np.float64]

MAX_DRIFT: Final = 1e-3
"""Largest drift between two clocks: crystals are off by up to 1e-4, and NTP slews by up to 5e-4."""

SIDE: Final = 6
"""Number of readings on either side of a jump that separate it from noise; a third of them may be outliers."""

_ENOUGH: Final = 8
"""Smallest number of readings for a model with more than an offset."""

_SPAN_NS: Final = 1e8
"""Shortest span for a drift: within it, ends of collectives differ more for other reasons than by a crystal's drift."""

_FLOOR_NS: Final = 100.0
"""Lower bound of the noise: clocks need not be better than this."""

_JUMP: Final = 8.0
"""Smallest jump, in multiples of the noise of a reading."""

_WEIGHT: Final = 3.0
"""Weight of a parameter: three times that of Schwarz's criterion, because noise lasts and has long tails."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Stretch between two settings of the clock: knots with straight lines between them, in nanoseconds."""

    at: Floats
    """Times of the knots on the common clock, ascending."""
    offset: Floats
    drift: float | None
    """Constant drift of the whole stretch, as a ratio; ``None`` where there is none that can be determined."""


Series = list[Stretch]


def at_times(series: Series, times: Floats) -> Floats:
    """Return the offsets at any times of the common clock."""
    at = np.concatenate([stretch.at for stretch in series])
    offset = np.concatenate([stretch.offset for stretch in series])
    offsets: Floats = np.interp(times, at, offset)
    return offsets


def seen_at(series: Series, times: Floats) -> Floats:
    """Return the offsets at any times of the clock itself."""
    offset = np.concatenate([stretch.offset for stretch in series])
    # A clock that was set back shows the same time twice.
    own = np.maximum.accumulate(np.concatenate([stretch.at for stretch in series]) + offset)
    offsets: Floats = np.interp(times, own, offset)
    return offsets


def keeps_one(series: Series) -> bool:
    """Return whether the offset is the same at all times."""
    return all(bool((stretch.offset == series[0].offset[0]).all()) for stretch in series)


def drift_ppm(series: Series) -> float | None:
    """Return the drift of the longest stretch in ppm; ``None`` where it is not known."""
    drift = max(series, key=lambda stretch: float(stretch.at[-1] - stretch.at[0])).drift
    return None if drift is None else drift * 1e6


def fit_series(at: Floats, offset: Floats, window: NDArray[np.int64]) -> Series:
    """Fit a series to readings at ascending times; ``window``: ascending, equal for readings that follow each other closely."""
    edges = [0, *_jumps(at, offset), len(at)]
    stretches = [_fit(at[first:past], offset[first:past], window[first:past]) for first, past in pairwise(edges)]
    # A clock counts as set halfway between two readings. Before the first and after the last reading, a drift is extended by
    # the length of its stretch.
    halfway = [float(at[edge - 1] + at[edge]) / 2 for edge in edges[1:-1]]
    begins = [float(2 * stretches[0].at[0] - stretches[0].at[-1]), *halfway]
    ends = [*halfway, float(2 * stretches[-1].at[-1] - stretches[-1].at[0])]
    return [_reaching(stretch, begin, end) for stretch, begin, end in zip(stretches, begins, ends, strict=True)]


def _reaching(stretch: Stretch, begin: float, end: float) -> Stretch:
    """Extend a stretch to ``begin`` and ``end``: along its drift if it is one straight line, else at a constant offset."""
    pace = stretch.drift if stretch.drift is not None and len(stretch.at) == 2 else 0.0
    before, after = stretch.offset[0] - pace * (stretch.at[0] - begin), stretch.offset[-1] + pace * (end - stretch.at[-1])
    return Stretch(
        np.concatenate([[begin], stretch.at, [end]]), np.concatenate([[before], stretch.offset, [after]]), stretch.drift
    )


def _jumps(at: Floats, offset: Floats) -> list[int]:
    """Return where the clock was set: the index of the first reading after each jump."""
    if len(at) < 2 * SIDE:
        return []
    sides = np.median(sliding_window_view(offset, SIDE), axis=1)
    jump = np.abs(sides[SIDE:] - sides[:-SIDE])
    # The difference of two normal readings exceeds 2.33 times their noise in one case of ten.
    noise = max(_FLOOR_NS, float(np.quantile(np.abs(np.diff(offset)), 0.9)) / 2.33)
    jump[jump <= _JUMP * noise + MAX_DRIFT * (at[2 * SIDE - 1 :] - at[: 1 - 2 * SIDE])] = 0.0
    places: list[int] = []
    while jump.max() > 0:
        first = int(jump.argmax())
        split = _split(offset[first : first + 2 * SIDE])
        places.append(first + split)
        # Differences that span this jump are no evidence of another one.
        jump[max(0, first + split - 2 * SIDE + 1) : first + split] = 0.0
    return sorted(places)


def _split(window_values: Floats) -> int:
    """Return the split that minimises the absolute deviations of the two parts from their own medians."""
    splits = range(SIDE // 2, len(window_values) - SIDE // 2 + 1)
    return min(splits, key=lambda at: _deviation(window_values[:at]) + _deviation(window_values[at:]))


def _deviation(values: Floats) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _fit(at: Floats, offset: Floats, window: NDArray[np.int64]) -> Stretch:
    ends = at[[0, -1]]
    middle = float(np.median(offset))
    best = Stretch(ends, np.full(2, middle), None)
    least = _price(offset - middle, 1)
    drift = _drift(at, offset)
    if drift is not None:
        level = float(np.median(offset - drift * (at - ends[0])))
        price = _price(offset - level - drift * (at - ends[0]), 2)
        if price < least:
            best, least = Stretch(ends, level + drift * (ends - ends[0]), drift), price
    changes = np.diff(window, prepend=window[:1]) != 0
    if 0 < 3 * changes.sum() < len(at):
        group = np.cumsum(changes)
        knots = Stretch(medians(at, group), medians(offset, group), best.drift)
        if _price(offset - at_times([knots], at), len(knots.at)) < least:
            best = knots
    return best


def _price(residual: Floats, parameters: int) -> float:
    count = len(residual)
    kept_count = count - count // _FAR_OFF
    scale = max(_FLOOR_NS, float(np.partition(np.abs(residual), kept_count - 1)[:kept_count].mean()))
    return float(2 * count * np.log(scale) + _WEIGHT * parameters * np.log(count))


_FAR_OFF: Final = 20
"""One in this many readings does not count: those with the largest residuals."""


def _drift(at: Floats, offset: Floats) -> float | None:
    """Estimate the drift by Theil's incomplete method, each pair of readings weighted by the time between them.

    ``None``: too few readings, too short a span, or a drift of more than ``MAX_DRIFT``.
    """
    count = len(at)
    if count < _ENOUGH or at[-1] - at[0] < _SPAN_NS:
        return None
    half = count // 2
    distance, change = at[half:] - at[:-half], offset[half:] - offset[:-half]
    is_apart = distance > 0
    pace, weight = change[is_apart] / distance[is_apart], distance[is_apart]
    order = np.argsort(pace, kind="stable")
    total = np.cumsum(weight[order])
    drift = float(pace[order][np.searchsorted(total, total[-1] / 2)])
    return drift if abs(drift) <= MAX_DRIFT else None


@dataclass(frozen=True, slots=True)
class ClockCourse:
    """Offset of a clock over time: straight lines between knots, held before the first and after the last."""

    at_ns: tuple[int, ...]
    """Times of the knots on this clock, ascending."""
    offset_ns: tuple[int, ...]
    """Offsets to subtract from these times."""

    def offset_at(self, unix_ns: int) -> int:
        """Return the offset to subtract from a time of this clock."""
        return _between(self.at_ns, self.offset_ns, unix_ns)

    def seen_at(self, common_ns: int) -> int:
        """Convert a time of the common clock to this clock."""
        common = [at - offset for at, offset in zip(self.at_ns, self.offset_ns, strict=True)]
        return common_ns + _between(common, self.offset_ns, common_ns)

    def offsets(self, unix_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``offset_at`` of many times."""
        first = self.at_ns[0]
        knots = np.array([at - first for at in self.at_ns], dtype=np.float64)
        return np.interp((unix_ns - first).astype(np.float64), knots, np.array(self.offset_ns, dtype=np.float64))


def course_of(series: Series, base_ns: int) -> ClockCourse:
    """Convert a series, in time since ``base_ns`` on the common clock, to a course in the clock's own time.

    A clock that was set back shows some times twice. These are taken to be the times after it was set.
    """
    at, offset = np.empty(0), np.empty(0)
    for stretch in reversed(series):
        own, amount = stretch.at + stretch.offset, stretch.offset
        if len(at) and own[-1] >= at[0]:
            until = at[0] - 1
            before = own < until
            if not before.any():
                continue
            own, amount = np.append(own[before], until), np.append(amount[before], np.interp(until, own, amount))
        at, offset = np.concatenate([own, at]), np.concatenate([amount, offset])
    latest = 2**62
    times = [min(max(base_ns + round(value), 0), latest) for value in np.maximum.accumulate(at).tolist()]
    return ClockCourse(tuple(times), tuple(round(value) for value in offset.tolist()))


def _between(at: Sequence[int], offset: Sequence[int], time: int) -> int:
    """Interpolate in integers, because floats cannot resolve nanoseconds of unix time."""
    right = bisect_right(at, time)
    if right == 0:
        return offset[0]
    if right == len(at):
        return offset[-1]
    before, after = at[right - 1], at[right]
    return offset[right - 1] + (offset[right] - offset[right - 1]) * (time - before) // (after - before)
