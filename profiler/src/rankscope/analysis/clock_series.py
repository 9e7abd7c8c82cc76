"""The offset of one clock over time, out of many readings of it that are off by noise.

Robust, for some readings are far off: medians and least absolute deviations. First the series is cut where the clock was set: a
jump that no drift makes. Of each stretch between two cuts the simplest model is taken that the readings support: an offset; an
offset and a drift; or an offset that changes its pace, as the clock is disciplined, with as many knots as pay off. More is paid
by Schwarz's criterion for Laplace noise: 2 n ln(mean absolute deviation) + weight · parameters · ln n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_DRIFT: Final = 1e-3
"""Crystals are off by up to 1e-4, NTP slews by up to 5e-4: two clocks do not drift apart faster than this."""

SIDE: Final = 6
"""Readings on either side of a jump that tell it from noise; a third of them may be far off."""

_ENOUGH: Final = 8
"""Readings from which on more than an offset can be told."""

_SPAN_NS: Final = 1e8
"""In a shorter time no drift of a crystal exceeds what the ends of collectives differ by for other reasons."""

_FLOOR_NS: Final = 100.0
"""Nobody needs clocks better than that."""

_JUMP: Final = 8.0
"""Times the noise of a reading."""

_WEIGHT: Final = 3.0
"""Of a parameter: three times what Schwarz asks for, since noise lasts and has long tails."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Between two times at which the clock was set: knots with straight lines between them. Nanoseconds."""

    at: Floats
    """On the common clock, ascending."""
    offset: Floats
    drift: float | None
    """One pace for all of it, as a ratio; ``None`` where none can be told."""


Series = list[Stretch]


def at_times(series: Series, times: Floats) -> Floats:
    """Offsets at any times of the common clock."""
    at = np.concatenate([one.at for one in series])
    offset = np.concatenate([one.offset for one in series])
    found: Floats = np.interp(times, at, offset)
    return found


def seen_at(series: Series, times: Floats) -> Floats:
    """Offsets at any times of the clock itself."""
    offset = np.concatenate([one.offset for one in series])
    # A clock that was set back says the same twice.
    own = np.maximum.accumulate(np.concatenate([one.at for one in series]) + offset)
    found: Floats = np.interp(times, own, offset)
    return found


def keeps_one(series: Series) -> bool:
    """Whether the offset is the same at all times."""
    return all(bool((one.offset == series[0].offset[0]).all()) for one in series)


def drift_ppm(series: Series) -> float | None:
    """Of the longest stretch."""
    drift = max(series, key=lambda one: float(one.at[-1] - one.at[0])).drift
    return None if drift is None else drift * 1e6


def fit_series(at: Floats, offset: Floats, window: NDArray[np.int64]) -> Series:
    """Of readings at ascending times; ``window``: ascending, the same for those that follow each other closely."""
    edges = [0, *_jumps(at, offset), len(at)]
    found = [_fit(at[first:past], offset[first:past], window[first:past]) for first, past in pairwise(edges)]
    # A clock is taken to be set halfway between two readings. Outside of all of them a drift goes on for as long as it was seen.
    halfway = [float(at[edge - 1] + at[edge]) / 2 for edge in edges[1:-1]]
    begins = [float(2 * found[0].at[0] - found[0].at[-1]), *halfway]
    ends = [*halfway, float(2 * found[-1].at[-1] - found[-1].at[0])]
    return [_reaching(one, begin, end) for one, begin, end in zip(found, begins, ends, strict=True)]


def _reaching(one: Stretch, begin: float, end: float) -> Stretch:
    """From ``begin`` to ``end``: with its drift, where one pace is all there is to it."""
    pace = one.drift if one.drift is not None and len(one.at) == 2 else 0.0
    before, after = one.offset[0] - pace * (one.at[0] - begin), one.offset[-1] + pace * (end - one.at[-1])
    return Stretch(np.concatenate([[begin], one.at, [end]]), np.concatenate([[before], one.offset, [after]]), one.drift)


def medians(values: Floats, group: NDArray[np.int64]) -> Floats:
    """Of each group, in the order of their numbers; ``group``: 0 to n - 1, each of them there."""
    return _middles(values[np.lexsort((values, group))], group)


def _middles(ordered: Floats, group: NDArray[np.int64]) -> Floats:
    """The same of values that are in the order of their groups, and ascending in each."""
    count = np.bincount(group)
    first = np.cumsum(count) - count
    found: Floats = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return found


def _jumps(at: Floats, offset: Floats) -> list[int]:
    """Where the clock was set: the first reading after each."""
    if len(at) < 2 * SIDE:
        return []
    sides = np.median(sliding_window_view(offset, SIDE), axis=1)
    jump = np.abs(sides[SIDE:] - sides[:-SIDE])
    # The difference of two normal readings exceeds 2.33 times their noise once in ten times.
    noise = max(_FLOOR_NS, float(np.quantile(np.abs(np.diff(offset)), 0.9)) / 2.33)
    jump[jump <= _JUMP * noise + MAX_DRIFT * (at[2 * SIDE - 1 :] - at[: 1 - 2 * SIDE])] = 0.0
    found: list[int] = []
    while jump.max() > 0:
        first = int(jump.argmax())
        split = _split(offset[first : first + 2 * SIDE])
        found.append(first + split)
        # What has the found one inside says nothing of others.
        jump[max(0, first + split - 2 * SIDE + 1) : first + split] = 0.0
    return sorted(found)


def _split(near: Floats) -> int:
    """Where two parts are the least off each from its own middle."""
    splits = range(SIDE // 2, len(near) - SIDE // 2 + 1)
    return min(splits, key=lambda at: _deviation(near[:at]) + _deviation(near[at:]))


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
    flat = offset - at_times([best], at)
    if len(at) < _ENOUGH or np.median(np.abs(np.diff(flat))) > _LASTS * np.median(np.abs(flat)):
        return best
    for group in _partitions(len(at), window):
        knots = Stretch(_middles(at, group), medians(offset, group), best.drift)
        price = _price(offset - at_times([knots], at), len(knots.at))
        if price < least:
            best, least = knots, price
    return best


_LASTS: Final = 1.25
"""Values that have nothing to do with each other differ by 1.4 times what they are off by, or more; less: what is left over
lasts from one to the next.
"""


def _price(residual: Floats, parameters: int) -> float:
    count = len(residual)
    kept = count - count // _FAR_OFF
    scale = max(_FLOOR_NS, float(np.partition(np.abs(residual), kept - 1)[:kept].mean()))
    return float(2 * count * np.log(scale) + _WEIGHT * parameters * np.log(count))


_FAR_OFF: Final = 20
"""One in so many readings does not count: those that are farthest off."""


def _drift(at: Floats, offset: Floats) -> float | None:
    """Theil's incomplete method, each pair of readings weighted by the time between them; ``None`` where it may not be asked."""
    count = len(at)
    if count < _ENOUGH or at[-1] - at[0] < _SPAN_NS:
        return None
    half = count // 2
    apart, change = at[half:] - at[:-half], offset[half:] - offset[:-half]
    there = apart > 0
    pace, weight = change[there] / apart[there], apart[there]
    order = np.argsort(pace, kind="stable")
    total = np.cumsum(weight[order])
    drift = float(pace[order][np.searchsorted(total, total[-1] / 2)])
    return drift if abs(drift) <= MAX_DRIFT else None


def _partitions(count: int, window: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Ways to put readings that follow each other into groups: by window, and into 2, 4, 8 … groups of equal size."""
    changes = np.diff(window, prepend=window[:1]) != 0
    if 0 < 3 * changes.sum() < count:
        yield np.cumsum(changes)
    groups = 2
    while 4 * groups <= min(count, 4 * _MOST):
        yield np.arange(count) * groups // count
        groups *= 2


_MOST: Final = 512
"""Knots between two steps."""
