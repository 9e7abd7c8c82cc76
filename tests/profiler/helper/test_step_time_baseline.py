"""Baseline of the step times of a rank, which every part of its helper uses."""

from __future__ import annotations

import pytest

from rankscope.profiler.helper.step_time_baseline import LEAST, RECENT, StepTimeBaseline, TypicalTime
from rankscope.runs.records import PhaseTimes, StepRecord


def step(number: int, wall_us: float, *tags: str, device_us: float | None = None, profiled: bool = False) -> StepRecord:
    device = None if device_us is None else PhaseTimes(forward=device_us)
    return StepRecord(step=number, start_unix_ns=1, wall_us=wall_us, tags=[*tags], device_us=device, profiled=profiled)


def test_profiled_and_long_steps_are_not_typical_but_took_their_time() -> None:
    baseline = StepTimeBaseline()
    for number in range(LEAST):
        baseline.add(step(number, 100.0))
        baseline.add(step(number, 900.0, profiled=True))
        baseline.add(step(number, 5000.0, "checkpoint"))
    assert baseline.typical() == TypicalTime(100.0, 0.0)
    assert baseline.walls_us() == [100.0, 900.0, 5000.0] * LEAST


@pytest.mark.parametrize("least", [1, 5, LEAST])
def test_there_is_no_typical_time_before_enough_steps(least: int) -> None:
    baseline = StepTimeBaseline()
    for number in range(least):
        assert baseline.typical(least) is None
        baseline.add(step(number, 100.0))
    assert baseline.typical(least) is not None


def test_single_slow_steps_do_not_move_what_is_typical_and_old_ones_are_forgotten() -> None:
    baseline = StepTimeBaseline()
    for number in range(RECENT):
        baseline.add(step(number, 5000.0))
    for number in range(RECENT):
        baseline.add(step(number, 9000.0 if number % 8 == 0 else 100.0))
    assert baseline.typical() == TypicalTime(100.0, 0.0)
    assert len(baseline.last_us(16)) == 16


def test_on_a_device_only_steps_with_device_times_count() -> None:
    baseline = StepTimeBaseline()
    for number in range(LEAST):
        baseline.add(step(number, 7.0))
    assert not baseline.on_device
    for number in range(LEAST):
        baseline.add(step(number, 7.0, device_us=40.0))
        baseline.add(step(number, 170.0))
    assert [baseline.on_device, baseline.typical()] == [True, TypicalTime(40.0, 0.0)]
    assert baseline.comparable_us(step(0, 170.0)) is None
