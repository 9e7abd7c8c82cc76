"""Unions and overlaps of many sets of time spans at once. Each span has the number of its set, its start and its end."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.collectives.arrivals import Numbers

NumberedSpans = tuple[Numbers, Numbers, Numbers]
"""Number of the set, start and end of each span."""


def unions(spans: NumberedSpans) -> NumberedSpans:
    """Return the union of each set: sorted disjoint spans. Empty and negative spans vanish, touching ones become one."""
    number, start, end = (values[spans[2] > spans[1]] for values in spans)
    if not len(number):
        return number, start, end
    order = np.lexsort((start, number))
    number, start, end = number[order], start[order], end[order]
    if ((number[1:] != number[:-1]) | (start[1:] > end[:-1])).all():
        return number, start, end
    ended = latest(number, end)
    begins = np.ones(len(number), np.bool_)
    begins[1:] = (number[1:] != number[:-1]) | (start[1:] > ended[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(number)) - 1
    return number[first], start[first], ended[last]


def latest(number: Numbers, end: Numbers) -> Numbers:
    """Return the latest end so far of each set; the spans of a set follow each other."""
    # As places among all ends, which cannot overflow.
    ends = np.sort(end)
    sets = np.cumsum(np.concatenate([[0], number[1:] != number[:-1]])) * len(ends)
    return np.asarray(ends[np.maximum.accumulate(np.searchsorted(ends, end) + sets) - sets])


def covered(spans: NumberedSpans, by: NumberedSpans) -> Numbers:
    """Return the length of each span that the set of the same number in ``by`` covers; ``by`` is a result of ``unions``."""
    number, start, end = spans
    of, first, past = by
    if not len(of):
        return np.zeros(len(number), np.int64)
    before = np.concatenate([[0], np.cumsum(past - first)])
    total = np.zeros(len(number), np.int64)
    for sign, times in ((1, end), (-1, start)):
        # The last span of ``by`` that starts before the time, in the same set or an earlier one.
        order = np.lexsort((np.repeat([0, 1], [len(of), len(times)]), np.append(first, times), np.append(of, number)))
        is_time = order >= len(of)
        at = np.empty(len(times), np.int64)
        at[order[is_time] - len(of)] = (np.cumsum(~is_time) - 1)[is_time]
        place = np.maximum(at, 0)
        inside = (at >= 0) & (of[place] == number)
        # Without one in the same set, all spans of earlier sets are before the time.
        total += sign * np.where(inside, before[place] + np.minimum(times, past[place]) - first[place], before[at + 1])
    return total
