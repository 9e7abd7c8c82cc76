"""Interval arithmetic for a handful of intervals, where arrays cost more than they save.

A merged list is sorted and disjoint and has no empty interval, like a merged set of ``intervals``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def merge(spans: Iterable[Span]) -> list[Span]:
    """Merge any intervals, in any order; empty and negative ones vanish, touching ones become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length(merged: Iterable[Span]) -> int:
    """Return the total length of a merged list."""
    return sum(end - start for start, end in merged)


def covered(merged: Iterable[Span], by: Sequence[Span]) -> int:
    """Return the length of the part of one merged list that lies in another one."""
    total, first = 0, 0
    for start, end in merged:
        while first < len(by) and by[first][1] <= start:
            first += 1
        for at in range(first, len(by)):
            low, high = by[at]
            if low >= end:
                break
            # Comparisons take a third of the time of min and max.
            low = start if low < start else low  # noqa: FURB136
            total += (end if end < high else high) - low  # noqa: FURB136
    return total
