"""Interval arithmetic, groups of rows and frames of threads, against slow models that look at each moment and row."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.analysis.trace_events import operator, trace_of

from rankscope.analysis.trace.intervals import (
    Spans,
    by_key,
    clips,
    covered,
    distinct,
    intersect,
    join,
    measure,
    shared,
    subtract,
    union,
)
from rankscope.analysis.trace.work import Work, enclosing, outermost, partition, within

LIMIT = 60

pairs = st.lists(st.tuples(st.integers(0, LIMIT), st.integers(-3, 12)), max_size=25)


def merged(items: list[tuple[int, int]]) -> Spans:
    array = np.array(items, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 0] + array[:, 1])


def points(spans: Spans) -> set[int]:
    return {point for start, end in spans for point in range(int(start), int(end))}


sets = pairs.map(merged)


@given(pairs)
@example([(0, 5), (5, 4)])  # touching ones become one
def test_union_covers_its_intervals_and_is_sorted_and_disjoint(items: list[tuple[int, int]]) -> None:
    spans = merged(items)
    assert points(spans) == {point for start, length in items for point in range(start, start + length)}
    assert (spans[:, 1] > spans[:, 0]).all()
    assert (spans[1:, 0] > spans[:-1, 1]).all()


@given(sets, sets)
def test_set_operations_agree_with_counting_points(left: Spans, right: Spans) -> None:
    assert points(join(left, right)) == points(left) | points(right)
    assert points(intersect(left, right)) == points(left) & points(right)
    assert points(subtract(left, right)) == points(left) - points(right)
    assert measure(left) == len(points(left))


@given(st.lists(sets, max_size=4))
@example([merged([(0, 5)])])
def test_shared_time_lies_in_at_least_two_sets(several: list[Spans]) -> None:
    counts = Counter(point for spans in several for point in points(spans))
    assert points(shared(several)) == {point for point, count in counts.items() if count >= 2}


@given(sets, st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)), max_size=5))
def test_clipping_to_many_windows_equals_clipping_to_each(spans: Spans, windows: list[tuple[int, int]]) -> None:
    bounds = np.array(windows, dtype=np.int64).reshape(-1, 2)
    inside = list(clips(spans, bounds[:, 0], bounds[:, 1]))
    assert [points(item) for item in inside] == [points(spans) & set(range(start, end)) for start, end in windows]


@given(sets, sets, sets, st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_partition_sums_to_the_window(compute: Spans, communication: Spans, copies: Spans, start: int, length: int) -> None:
    part = partition(Work(compute, communication, copies), start, start + length)
    window = set(range(start, start + length))
    k, c, m = (points(spans) & window for spans in (compute, communication, copies))
    nanoseconds = {
        "window": part.window_us,
        "compute": part.compute_us,
        "communication": part.communication_us,
        "overlap": part.overlap_us,
        "exposed": part.exposed_communication_us,
        "copies": part.memcpy_us,
        "exposed copies": part.exposed_memcpy_us,
        "idle": part.idle_us,
    }
    assert {name: round(us * 1000) for name, us in nanoseconds.items()} == {
        "window": length,
        "compute": len(k),
        "communication": len(c),
        "overlap": len(k & c),
        "exposed": len(c - k),
        "copies": len(m),
        "exposed copies": len(m - k - c),
        "idle": len(window - k - c - m),
    }


@given(pairs, sets)
def test_covered_counts_each_interval_separately(intervals: list[tuple[int, int]], spans: Spans) -> None:
    starts, lengths = np.array(intervals, dtype=np.int64).reshape(-1, 2).T
    inside = points(spans)
    expected = [sum(at in inside for at in range(start, start + length)) for start, length in intervals]
    assert covered(starts, starts + lengths, spans).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_groups_contain_each_row_once_and_in_order(keys: list[tuple[int, int]]) -> None:
    first, second = (np.array([key[column] for key in keys], dtype=np.int64) for column in (0, 1))
    groups = [rows.tolist() for rows in by_key(first, second)]
    assert groups == [[row for row, key in enumerate(keys) if key == item] for item in sorted(set(keys))]


@given(st.lists(st.integers(0, 500)))
def test_distinct_numbers_are_unique_and_sorted(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, dtype=np.int32)) == sorted(set(numbers))


CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=20)


@given(CALLS, st.data())
def test_enclosing_and_within_agree_with_checking_every_frame(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    # given events of three threads, any of which are frames
    chosen = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    events = [(thread, start * 1000, (start + length) * 1000) for thread, start, length in rows]
    trace = trace_of(tmp_path_factory.mktemp("trace"), [operator("x", ts, dur, tid) for tid, ts, dur in rows])
    frames = np.flatnonzero(chosen)
    # then an event is within any frame that has begun and not ended
    everything = np.arange(len(events))
    expected = [any(events[at][0] == item and events[at][1] <= now < events[at][2] for at in frames) for item, now, _ in events]
    assert within(trace, everything, frames).tolist() == expected
    # and enclosed by the outermost of those, of which there is at most one
    mask = np.zeros(len(events), dtype=bool)
    mask[frames] = True
    outer = outermost(trace, mask)
    for row, entry in enumerate(enclosing(trace, everything, outer)):
        thread, now, _ = events[row]
        around = [at for at, item in enumerate(outer) if events[item][0] == thread and events[item][1] <= now < events[item][2]]
        assert around == ([entry] if entry >= 0 else [])
