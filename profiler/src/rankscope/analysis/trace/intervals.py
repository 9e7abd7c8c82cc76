"""Interval arithmetic: all analyses add up time with these functions.

A set of intervals is an int64 array [n, 2] of half-open ``[start, end)`` nanoseconds. A *merged* set is sorted, disjoint and
without empty intervals. ``union`` returns merged sets; every other function takes and returns them unless noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.int64]
_N = TypeVar("_N", np.int64, np.float64)

EMPTY: Final[Spans] = np.empty((0, 2), dtype=np.int64)


def union(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Spans:
    """Merge intervals in any order; empty and negative ones are dropped, touching ones become one."""
    real = ends > starts
    if not real.any():
        return EMPTY
    starts, ends = starts[real], ends[real]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > ends[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return np.column_stack((starts[opens], ends[closes]))


def join(*sets: Spans) -> Spans:
    """Return the union of several sets, merged or not."""
    both = np.concatenate((EMPTY, *sets))
    return union(both[:, 0], both[:, 1])


def measure(spans: Spans) -> int:
    """Return the total length of a merged set in nanoseconds."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def intersect(left: Spans, right: Spans) -> Spans:
    """Return the intersection of two merged sets."""
    # For every left interval, the right ones that overlap it are a contiguous range: both sets are sorted and disjoint.
    first = np.searchsorted(right[:, 1], left[:, 0], side="right")
    past = np.searchsorted(right[:, 0], left[:, 1], side="left")
    counts = np.maximum(past - first, 0)
    total = int(counts.sum())
    if total == 0:
        return EMPTY
    rows = np.repeat(np.arange(len(left)), counts)
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    others = first[rows] + offsets
    return np.column_stack((np.maximum(left[rows, 0], right[others, 0]), np.minimum(left[rows, 1], right[others, 1])))


def subtract(left: Spans, right: Spans) -> Spans:
    """Return the part of the merged set ``left`` outside the merged set ``right``."""
    if len(left) == 0 or len(right) == 0:
        return left
    low = min(int(left[0, 0]), int(right[0, 0]))
    high = max(int(left[-1, 1]), int(right[-1, 1]))
    gaps = np.column_stack((np.concatenate(([low], right[:, 1])), np.concatenate((right[:, 0], [high]))))
    return intersect(left, gaps[gaps[:, 1] > gaps[:, 0]])


def clip(spans: Spans, start: int, end: int) -> Spans:
    """Return the part of a merged set within ``[start, end)``."""
    return next(clips(spans, np.array([start], dtype=np.int64), np.array([end], dtype=np.int64)))


def clips(spans: Spans, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[Spans]:
    """Yield, per interval ``[starts, ends)``, the part of a merged set within it."""
    # Starts and ends of a merged set alternate in ascending order, so two binary searches find the part.
    edges = spans.ravel()
    first = edges.searchsorted(starts, side="right") // 2
    past = (edges.searchsorted(ends, side="left") + 1) // 2
    for begin, end, at, until in zip(starts.tolist(), ends.tolist(), first.tolist(), past.tolist(), strict=True):
        if end <= begin or until <= at:
            yield EMPTY
            continue
        inside = spans[at:until].copy()
        inside[0, 0] = max(inside[0, 0], begin)
        inside[-1, 1] = min(inside[-1, 1], end)
        yield inside


def covered(starts: NDArray[np.int64], ends: NDArray[np.int64], spans: Spans) -> NDArray[np.int64]:
    """Return, per interval ``[starts, ends)``, the length in a merged set; 0 for an empty or negative interval."""
    if not len(spans):
        return np.zeros(len(starts), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0])))

    def until(times: NDArray[np.int64]) -> NDArray[np.int64]:
        at = np.searchsorted(spans[:, 0], times, side="right") - 1
        inside = np.minimum(times, spans[np.maximum(at, 0), 1]) - spans[np.maximum(at, 0), 0]
        return np.where(at < 0, 0, before[np.maximum(at, 0)] + inside).astype(np.int64)

    covered_times: NDArray[np.int64] = np.maximum(until(ends) - until(starts), 0)
    return covered_times


def are_within(times: NDArray[np.int64], intervals: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which times are within one of some ``intervals``, both bounds included."""
    within = np.zeros(len(times), dtype=bool)
    for first, last in intervals:
        within |= (times >= first) & (times <= last)
    return within


def shared(sets: Sequence[Spans]) -> Spans:
    """Return the time that is in two or more of several merged sets, as a merged set."""
    edges = np.concatenate([EMPTY, *sets])
    times = np.concatenate((edges[:, 0], edges[:, 1]))
    steps = np.repeat(np.array([1, -1], dtype=np.int64), len(edges))
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(steps[order])[:-1]
    times = times[order]
    twice = depth >= 2
    return union(times[:-1][twice], times[1:][twice])


def by_key(*columns: NDArray[np.generic]) -> Iterator[NDArray[np.intp]]:
    """Yield the positions of each group of rows with equal values in all ``columns``.

    Positions are ascending. Groups are in the order of the columns' values, compared from the first column on.
    """
    if not len(columns[0]):
        return
    order = np.lexsort(columns[::-1])
    changes = np.zeros(len(order) - 1, dtype=bool)
    for column in columns:
        ordered = column[order]
        changes |= ordered[1:] != ordered[:-1]
    yield from np.split(order, np.flatnonzero(changes) + 1)


def distinct(numbers: NDArray[np.integer[Any]]) -> list[int]:
    """Return the distinct values of ``numbers`` in ascending order; ``numbers`` must be non-negative and small."""
    # np.unique is slower here: its first call imports numpy.ma, which takes as long as the analysis of a small trace.
    return np.flatnonzero(np.bincount(numbers)).tolist()


def positions_of(ids: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return, per id, the position of the first of ``among`` that equals it; -1 where none does, and for a negative id."""
    found_at = np.flatnonzero(among >= 0)
    if not len(found_at):
        return np.full(len(ids), -1, dtype=np.intp)
    values = among[found_at]
    if (values[1:] < values[:-1]).any():
        found_at = found_at[np.argsort(values, kind="stable")]
        values = among[found_at]
    at = np.minimum(np.searchsorted(values, ids), len(values) - 1)
    return np.where((ids >= 0) & (values[at] == ids), found_at[at], -1)


def middles(values: NDArray[_N], *keys: NDArray[np.integer[Any]]) -> tuple[NDArray[np.intp], NDArray[_N], NDArray[_N]]:
    """Return, for each group of rows with equal keys, the position of its least value, and the lower and the upper middle one."""
    order = np.lexsort((values, *keys[::-1]))
    changes = np.zeros(max(0, len(order) - 1), dtype=bool)
    for key in keys:
        changes |= np.diff(key[order]) != 0
    first = np.concatenate(([0], np.flatnonzero(changes) + 1))[: len(order)]
    past = np.concatenate((first[1:], [len(order)]))
    return order[first], values[order[(first + past - 1) // 2]], values[order[(first + past) // 2]]


def medians(values: NDArray[np.float64], group: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return the median of each group of values, in the order of the groups' numbers."""
    _, low, high = middles(values, group)
    return (low + high) / 2
