"""Unions and overlaps of many sets of spans at once, against counting points."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.analysis.collectives.spans import Spans, covered, unions

FAR = 2**62
"""Times of damaged records lie far apart, which must not overflow."""

few = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-50, 50), st.integers(-50, 50), st.sampled_from([0, FAR, -FAR])), max_size=12
)


def columns(rows: list[tuple[int, int, int, int]]) -> Spans:
    number, start, end = np.array([(of, item + far, other + far) for of, item, other, far in rows], np.int64).reshape(-1, 3).T
    return number, start, end


def points(spans: Spans) -> set[tuple[int, int]]:
    return {(of, at) for of, start, end in zip(*(span.tolist() for span in spans), strict=True) for at in range(start, end)}


@given(few)
@example([(0, 0, 10, 0), (0, 1, 2, 0), (0, 4, 5, 0)])  # two within one
def test_the_union_of_each_set_is_what_its_points_are(rows: list[tuple[int, int, int, int]]) -> None:
    result = unions(columns(rows))
    assert points(result) == points(columns(rows))
    assert [union.tolist() for union in unions(result)] == [union.tolist() for union in result]
    number, start, end = result
    assert int((end - start).sum()) == len(points(result))
    same = number[1:] == number[:-1]
    assert (start[1:][same] > end[:-1][same]).all()


@given(few, few)
def test_of_each_span_the_covered_points_are_counted(
    rows: list[tuple[int, int, int, int]], others: list[tuple[int, int, int, int]]
) -> None:
    spans, by = unions(columns(rows)), unions(columns(others))
    result = covered(spans, by)
    for at, length in enumerate(result.tolist()):
        value = (spans[0][at : at + 1], spans[1][at : at + 1], spans[2][at : at + 1])
        assert length == len(points(value) & points(by))
