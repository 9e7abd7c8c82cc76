"""Lanes, times, names and selections of an export."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.perfetto_model import load, nanoseconds

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.perfetto.chrome_json import (
    HORIZON_NS,
    MAX_ARGS_BYTES,
    MAX_LANES,
    MAX_NAME,
    SliceLanes,
    TraceWriter,
    encoded_args,
    printable,
    us_text,
)
from rankscope.analysis.perfetto.raw_trace import ns_of
from rankscope.analysis.perfetto.selection import Selection, fitting_steps

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters()), inner, max_size=5),
    max_leaves=20,
)


def ordered(slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(slices, key=lambda span: (span[0], -span[1]))


@given(spans)
def test_slices_of_a_nesting_lane_are_nested_or_disjoint(slices: list[tuple[int, int]]) -> None:
    lanes = SliceLanes(nest=True)
    placed = [(lanes.place(*span), *span) for span in ordered(slices)]
    for at, (lane, start, end) in enumerate(placed):
        for other, begin, stop in placed[:at]:
            if other == lane:
                assert stop <= start or end <= stop, "begins inside an earlier one and ends after it"
                assert begin <= start


@given(spans)
def test_slices_of_a_flat_lane_never_overlap(slices: list[tuple[int, int]]) -> None:
    lanes = SliceLanes(nest=False)
    placed = [(lanes.place(*span), *span) for span in ordered(slices)]
    for at, (lane, start, _) in enumerate(placed):
        assert all(stop <= start for other, _, stop in placed[:at] if other == lane)


def test_nested_slices_need_one_lane() -> None:
    lanes = SliceLanes(nest=True)
    assert {lanes.place(at, 200 - at) for at in range(100)} == {0}


def test_slices_beyond_the_lane_limit_are_refused() -> None:
    lanes = SliceLanes(nest=False)
    assert [lanes.place(0, 10) for _ in range(MAX_LANES + 1)] == [*range(MAX_LANES), None]
    assert lanes.place(10, 20) == 0


@given(spans)
def test_perfetto_drops_no_slice_of_a_track(slices: list[tuple[int, int]]) -> None:
    # given times that are not whole microseconds, as in traces
    written = bytearray()
    writer = TraceWriter(written.extend, base_ns=0)
    track = writer.track(writer.process("p", order=0), "t")
    for start, end in ordered(slices):
        track.slice("s", 1_000_000_001 + start * 333, 1_000_000_001 + end * 333, kind="k")
    writer.close({})
    # when Perfetto reads them
    model = load(bytes(written))
    # then all are there
    assert model.dropped == []
    assert len(model.slices) == len(slices)


@given(st.integers(0, HORIZON_NS - 1))
def test_times_keep_every_nanosecond_in_perfetto(ns: int) -> None:
    text = us_text(ns)
    assert nanoseconds(json.loads(text)) == ns
    assert ns_of(text) == ns
    assert round(Decimal(text.decode()), 3) == Decimal(ns) / 1000


def test_times_have_three_decimals_unless_perfetto_would_round() -> None:
    assert us_text(1_234_567) == b"1234.567"
    assert us_text(0) == b"0.000"
    # 1.001 * 1000 is 1000.9999999999999
    assert us_text(1_001) == b"1.0011"


@given(st.integers(-(2**60), 2**60))
def test_absolute_times_keep_all_digits(ns: int) -> None:
    sign, (us, rest) = "-" if ns < 0 else "", divmod(abs(ns), 1000)
    assert ns_of(f"{sign}{us}.{rest:03d}".encode()) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"5", 5_000),
        (b'"5.5"', 5_500),
        (b"1e3", 1_000_000),
        (b"0.0004", 0),
        (b"0.0006", 1),
        (b"null", None),
        (b'"x"', None),
        (b"NaN", None),
        (b"1e400", None),
        (b"1e99999999", None),
        (b"9" * 5000, None),
        (b"[1]", None),
        (b'"\xff"', None),
        ("٣".encode(), None),
    ],
)
def test_damaged_times_are_parsed_or_none(text: bytes, ns: int | None) -> None:
    assert ns_of(text) == ns


@given(st.text(st.characters()))
def test_names_are_made_printable_and_short(text: str) -> None:
    shown = printable(text)
    assert len(shown) <= MAX_NAME
    assert shown.isprintable()
    shown.encode()
    if text.isprintable() and len(text) <= MAX_NAME:
        assert shown == text


@given(st.dictionaries(st.text(st.characters()), json_values, max_size=5))
def test_arguments_are_bounded_and_encodable(args: dict[str, Any]) -> None:
    data = encoded_args(args)
    assert len(data) <= MAX_ARGS_BYTES
    assert isinstance(json.loads(data), dict)


def test_huge_arguments_are_truncated() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    shown = json.loads(
        encoded_args({"deep": deep, "long": list(range(100)), "wide": {str(key): 0 for key in range(100)}, "big": 10**50})
    )
    assert shown["deep"] == [[["…"]]]
    assert shown["long"][-1] == "… 36 more"
    assert shown["wide"]["…"] == "36 more"
    assert shown["big"] == str(10**50)
    assert json.loads(encoded_args({str(key): "x" * 1000 for key in range(60)})) == {"left out": "60471 bytes of arguments"}


@pytest.mark.parametrize(
    ("steps", "profiled", "limit", "expected"),
    [
        # All where they fit.
        ((1, 2, 9), set(), 30, (1, 10)),
        ((), set(), 30, None),
        # Else the latest, or those around the last profile.
        (range(100), set(), 50, (95, 100)),
        (range(100), {40, 60}, 100, (56, 66)),
        (range(100), {40, 60}, 1, (65, 66)),
        # An early profile leaves the room to the steps after it.
        (range(100), {3}, 500, (0, 50)),
        (range(100), {3}, 45, (5, 9)),
    ],
)
def test_fitting_steps_are_the_latest_or_around_the_last_profile(
    steps: Iterable[int], profiled: set[int], limit: int, expected: tuple[int, int] | None
) -> None:
    assert fitting_steps(dict.fromkeys(steps, 10), profiled, limit) == expected


@given(st.dictionaries(st.integers(0, 99), st.integers(1, 20), min_size=1), st.sets(st.integers(0, 99)), st.integers(1, 400))
def test_chosen_steps_fit_the_limit(weights: dict[int, int], profiled: set[int], limit: int) -> None:
    chosen = fitting_steps(weights, profiled, limit)
    assert chosen is not None
    steps = [step for step in weights if chosen[0] <= step < chosen[1]]
    assert steps
    assert sum(weights[step] for step in steps) <= limit or len(steps) == 1


def test_selection_contains_the_steps_between_its_bounds() -> None:
    assert [step for step in range(6) if Selection(steps=StepRange(2, 4)).steps.has(step)] == [2, 3]
    assert all(Selection().steps.has(step) and Selection().has_rank(step) for step in range(3))
    assert not Selection().chose_steps
