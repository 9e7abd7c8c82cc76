"""Sets of spans and the transfer and wait of collectives in them, overlapped or exposed, against counting points."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import matched, record

from rankscope.analysis.collectives.communication import communication_parts
from rankscope.analysis.collectives.spans import NumberedSpans, covered, unions

COLLECTIVES = st.lists(
    st.tuples(
        st.integers(0, 100),  # end, the same on all ranks
        st.lists(st.integers(1, 30), min_size=3, max_size=3),  # duration per rank
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=3, max_size=3),  # compute before the end
    ),
    min_size=1,
    max_size=6,
)


@given(COLLECTIVES)
def test_transfer_and_wait_times_agree_with_counting_points(rows: list[tuple[int, list[int], list[tuple[int, int]]]]) -> None:
    # given collectives of three ranks that end together, with compute inside
    base = 10**6
    matches = []
    for end, durations, computes in rows:
        records = []
        for duration, compute in zip(durations, computes, strict=True):
            start = base + end - duration
            low, high = (min(max(base + end - value, start), base + end) for value in sorted(compute, reverse=True))
            spans = [(low - start, high - start)] if high > low else []
            records.append(record(start, base + end, compute_spans_us=spans))
        matches.append(dict(enumerate(records)))
    # when
    parts = communication_parts(matched(*matches))
    # then, microsecond by microsecond
    for rank in range(3):
        transfer: set[int] = set()
        everything: set[int] = set()
        busy: set[int] = set()
        for (end, durations, _), match in zip(rows, matches, strict=True):
            of_rank = match[rank]
            transfer |= set(range(base + end - min(durations), base + end))
            everything |= set(range(base + end - durations[rank], base + end))
            for first, last in of_rank.compute_spans_us:
                start = of_rank.start_unix_ns // 1000
                busy |= set(range(start + int(first), start + int(last)))
        wait = everything - transfer
        part = parts[rank]
        assert (part.transfer_overlap_us, part.transfer_exposed_us) == (len(transfer & busy), len(transfer - busy))
        assert (part.wait_overlap_us, part.wait_exposed_us) == (len(wait & busy), len(wait - busy))
        assert part.unmatched_overlap_us is None
        # and with the whole window given, nothing is lost
        whole = communication_parts(matched(*matches), {rank: (len(everything) + 5.0, len(everything & busy) + 2.0)})[rank]
        assert (whole.unmatched_overlap_us, whole.unmatched_exposed_us) == (2, 3)


def test_last_rank_does_not_wait_and_cpu_arrival_is_the_enqueue() -> None:
    # given a collective on CPU threads: rank 0 enqueued early, its worker began later; rank 1 enqueued late
    early, late = (record(enqueue, 100, stream=None, start_unix_ns=1000 * start) for enqueue, start in ((0, 20), (70, 75)))
    parts = communication_parts(matched({0: early, 1: late}))
    assert (parts[0].transfer_exposed_us, parts[0].wait_exposed_us) == (30, 50)
    assert (parts[1].transfer_exposed_us, parts[1].wait_exposed_us) == (25, 0)


FAR = 2**62
"""Times of damaged records lie far apart, which must not overflow."""

few = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-50, 50), st.integers(-50, 50), st.sampled_from([0, FAR, -FAR])), max_size=12
)


def columns(rows: list[tuple[int, int, int, int]]) -> NumberedSpans:
    number, start, end = np.array([(of, item + far, other + far) for of, item, other, far in rows], np.int64).reshape(-1, 3).T
    return number, start, end


def points(spans: NumberedSpans) -> set[tuple[int, int]]:
    return {(of, at) for of, start, end in zip(*(span.tolist() for span in spans), strict=True) for at in range(start, end)}


@given(few)
@example([(0, 0, 10, 0), (0, 1, 2, 0), (0, 4, 5, 0)])  # two within one
def test_unions_of_spans_hold_the_same_points(rows: list[tuple[int, int, int, int]]) -> None:
    result = unions(columns(rows))
    assert points(result) == points(columns(rows))
    assert [union.tolist() for union in unions(result)] == [union.tolist() for union in result]
    number, start, end = result
    assert int((end - start).sum()) == len(points(result))
    same = number[1:] == number[:-1]
    assert (start[1:][same] > end[:-1][same]).all()


@given(few, few)
def test_covered_points_are_counted_for_each_span(
    rows: list[tuple[int, int, int, int]], others: list[tuple[int, int, int, int]]
) -> None:
    spans, by = unions(columns(rows)), unions(columns(others))
    result = covered(spans, by)
    for at, length in enumerate(result.tolist()):
        value = (spans[0][at : at + 1], spans[1][at : at + 1], spans[2][at : at + 1])
        assert length == len(points(value) & points(by))
