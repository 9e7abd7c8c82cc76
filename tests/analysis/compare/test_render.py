"""Rendering of a comparison in a terminal."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.compare.simulated_steps import MadeUp

from rankscope.analysis.compare.comparable_steps import comparable_steps
from rankscope.analysis.compare.compare_result import CompareResult, Side
from rankscope.analysis.compare.compare_runs import MIN_CHANGE
from rankscope.analysis.compare.compare_terminal import render_compare
from rankscope.analysis.compare.compare_wording import percent, rate, rounded_time, size, time
from rankscope.analysis.compare.outcomes import CONFIDENCE, METHOD
from rankscope.analysis.compare.pair import compare_pair
from rankscope.analysis.compare.scaling import scaling
from rankscope.analysis.result.analysis import Cost

SIDE = Side(
    label="A",
    path="runs/a",
    run_id="a",
    name="a",
    attempt=0,
    world_size=4,
    ranks=4,
    steps=(0, 100),
    used_steps=90,
    left_out={"warm_up": 5, "profiled": 5},
    simulated=False,
    step_us=104_000.0,
    typical_us=103_000.0,
    samples_per_step=32.0,
    tokens_per_step=None,
    samples_per_s=307.0,
    tokens_per_s=None,
    cost_per_million_samples=Cost(amount=12.5, currency="EUR"),
    cost_per_million_tokens=None,
)


def result(b: MadeUp, **side: object) -> CompareResult:
    pair = compare_pair(
        comparable_steps(MadeUp(seed=1).recording(), "A"), comparable_steps(b.recording(), "B"), min_change=MIN_CHANGE
    )
    return CompareResult(
        mode="pairs",
        confidence=CONFIDENCE,
        min_change=MIN_CHANGE,
        method=METHOD,
        sides=[SIDE, msgspec.structs.replace(SIDE, **{"label": "B", "path": "runs/b", **side})],
        comparisons=[pair],
    )


SLOW = MadeUp(seed=2, late={2: ("forward", 20_000)})


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_fit_the_width_and_the_answer_comes_first(width: int) -> None:
    text = render_compare(result(SLOW), width=width)
    lines = text.splitlines()
    assert lines[0] == "WORSE"
    assert lines[1].startswith("B is slower than A: the typical step takes")
    assert [line for line in lines if len(line) > width] == []
    assert ("between" in text.split("typical step  ")[0].rsplit("\n", 2)[-2]) == (width > 80)


def test_rows_follow_their_titles() -> None:
    lines = render_compare(result(SLOW)).splitlines()
    at = {line.strip(): number for number, line in enumerate(lines)}
    title = at["parts of the average step, which add up to it"]
    assert lines[title - 1].startswith("samples per second")
    assert lines[title + 1].startswith("  own: data loading")
    rank = next(number for line, number in at.items() if line.startswith("ranks whose own time changed"))
    assert lines[rank + 2].split()[:2] == ["2", "n1"]
    assert lines[rank + 2].endswith("forward  slower")


def test_cost_simulation_and_warnings_are_shown() -> None:
    text = render_compare(result(SLOW, simulated=True, warnings=["3 damaged lines skipped"]))
    assert "GPU readings SIMULATED" in text
    assert "12.5 EUR per million samples" in text
    assert "left out: 5 warm up, 5 profiled" in text
    assert "warning: 3 damaged lines skipped" in text


def test_escape_sequences_of_a_run_are_replaced() -> None:
    text = render_compare(result(replace(SLOW, hosts={2: "\x1b[31mn9"}), path="runs/\x1b]0;b"))
    assert "\x1b" not in text
    assert "\N{REPLACEMENT CHARACTER}[31mn9" in text


def test_names_of_runs_are_above_the_columns_at_any_width() -> None:
    names = "a-very-long-name-of-a-run-1", "a-very-long-name-of-a-\x1b[31m-2"
    sides = [comparable_steps(run.recording(), name) for run, name in zip((MadeUp(seed=1), SLOW), names, strict=True)]
    complete = msgspec.structs.replace(result(SLOW), comparisons=[compare_pair(*sides, min_change=MIN_CHANGE)])
    text = render_compare(complete, width=80)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    header = next(line for line in text.splitlines() if line.startswith(" ") and "change" in line)
    assert header.split()[:2] == ["a-ver…-run-1", "a-ver…[31m-2"]


def test_colours_are_used_only_on_request() -> None:
    assert render_compare(result(SLOW), color=True).startswith("\x1b[1;31mWORSE\x1b[0m\n")
    assert "\x1b" not in render_compare(result(SLOW), color=False)


def test_too_little_data_still_shows_the_numbers() -> None:
    text = render_compare(result(MadeUp(seed=2, steps=12)))
    assert text.startswith("NOT ENOUGH DATA\nNot enough data to compare B with A")
    row = next(line for line in text.splitlines() if line.startswith("average step"))
    assert row.endswith("not enough data")
    assert " ms" in row


def test_scaling_table_shows_cost_and_losses_in_80_columns() -> None:
    sides = [
        comparable_steps(MadeUp(seed=ranks, ranks=ranks, transfer_us=2_000.0 * ranks).recording(), f"R{ranks}")
        for ranks in (2, 8)
    ]
    complete = msgspec.structs.replace(
        result(SLOW), mode="scaling", comparisons=[], scaling=scaling(sides, gpu_hour=Cost(amount=2, currency="USD"))
    )
    text = render_compare(complete, width=80)
    assert text.startswith("SCALING\nOn 8 ranks ")
    assert "per million" in text
    assert "exposed communication" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (time(0.01234), "0.01234 µs"),
        (time(999.96), "1 ms"),
        (time(102_437), "102.4 ms"),
        (time(-1_500, signed=True), "-1.5 ms"),
        (time(18_162, signed=True), "+18.2 ms"),
        (time(999.6, signed=True), "+1 ms"),
        (rounded_time(815.8), "816 µs"),
        (size(-1_012 * 2**10, signed=True), "-1010 KiB"),
        (rate(302.46), "302.5"),
        (rate(123_456.0), "123,456"),
        (rate(-44.32, signed=True), "-44.3"),
        (rate(1_834.2, signed=True), "+1,834"),
        (rate(999.6, signed=True), "+1,000"),
        (time(3.6e9 * 5), "5 h"),
        (size(2**30 * 1.5), "1.5 GiB"),
        (size(0), "0 B"),
        (percent(0.156), "+15.6%"),
        (percent(-0.00001), "+0.00%"),
        (percent(0.9999, signed=False), "100%"),
        (percent(11.4), "12.4x"),
    ],
)
def test_numbers_are_formatted_readably(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(-1e15, 1e15))
def test_every_time_has_a_unit_and_few_digits(us: float) -> None:
    number, unit = time(us, signed=True).split()
    assert unit in {"µs", "ms", "s", "h"}
    assert float(number) * {"µs": 1, "ms": 1e3, "s": 1e6, "h": 3.6e9}[unit] == pytest.approx(us, rel=5.01e-3)


def test_tables_fit_into_80_columns_also_without_enough_data() -> None:
    for made_up in (SLOW, MadeUp(seed=2, steps=12), MadeUp(seed=3, noise=0.3)):
        assert [line for line in render_compare(result(made_up), width=80).splitlines() if len(line) > 80] == []
