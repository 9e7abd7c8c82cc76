"""Interval arithmetic against a slow model that counts single nanoseconds."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.analysis.trace.intervals import Spans, clip, clips, intersect, join, measure, shared, subtract, union
from rankscope.analysis.trace.work import Work, partition

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
def test_a_union_covers_its_intervals_and_is_sorted_and_disjoint(items: list[tuple[int, int]]) -> None:
    spans = merged(items)
    assert points(spans) == {point for start, length in items for point in range(start, start + length)}
    assert (spans[:, 1] > spans[:, 0]).all()
    assert (spans[1:, 0] > spans[:-1, 1]).all()


@given(sets)
def test_a_union_is_idempotent(spans: Spans) -> None:
    assert np.array_equal(join(spans, spans), spans)


@given(sets, sets)
def test_set_operations_agree_with_counting_points(left: Spans, right: Spans) -> None:
    assert points(join(left, right)) == points(left) | points(right)
    assert points(intersect(left, right)) == points(left) & points(right)
    assert points(subtract(left, right)) == points(left) - points(right)
    assert measure(left) == len(points(left))


@given(st.lists(sets, max_size=4))
@example([merged([(0, 5)])])
def test_shared_time_is_in_two_sets_or_more(several: list[Spans]) -> None:
    counts = Counter(point for spans in several for point in points(spans))
    assert points(shared(several)) == {point for point, count in counts.items() if count >= 2}


@given(sets, sets)
def test_the_intersection_is_no_larger_than_either_set(left: Spans, right: Spans) -> None:
    assert measure(intersect(left, right)) <= min(measure(left), measure(right))


@given(sets, st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_clipping_keeps_what_lies_inside(spans: Spans, start: int, end: int) -> None:
    assert points(clip(spans, start, end)) == {point for point in points(spans) if start <= point < end}


@given(sets, st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)), max_size=5))
def test_clipping_to_many_windows_is_clipping_to_each(spans: Spans, windows: list[tuple[int, int]]) -> None:
    bounds = np.array(windows, dtype=np.int64).reshape(-1, 2)
    inside = list(clips(spans, bounds[:, 0], bounds[:, 1]))
    assert [points(item) for item in inside] == [points(spans) & set(range(start, end)) for start, end in windows]


@given(sets, sets, sets, st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_the_partition_sums_to_the_window(compute: Spans, communication: Spans, copies: Spans, start: int, length: int) -> None:
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
