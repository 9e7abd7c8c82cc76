"""Reports of a helper about its rank: its pace, and the recorder's cost, always on and per window."""

from __future__ import annotations

import msgspec
import pytest

from rankscope.profiler.helper.coordination.pace import StepPace
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.plan import RankReport
from rankscope.runs.records import PhaseTimes, RankInfo, StepRecord

INFO = RankInfo(rank=1, world_size=2, host="h", pid=1, start_unix_ns=1, recorder_cost_us=0.0, window_cost_us=0.0)


def add(pace: StepPace, record: StepRecord) -> None:
    """Add a step, as the helper does."""
    pace._baseline.add(record)
    pace.add(record)


def train(pace: StepPace, steps: int, *, wall_us: float = 1000.0, profiled: bool = False) -> None:
    """Train this many more steps."""
    for _ in range(steps):
        number = 0 if pace.last_step is None else pace.last_step + 1
        add(pace, StepRecord(step=number, start_unix_ns=1, wall_us=wall_us, profiled=profiled))


def report(pace: StepPace, *, cost_us: float, window_cost_us: float = 0.0, windows: int = 0) -> RankReport:
    """Return the report for these costs in the ring."""
    info = msgspec.structs.replace(INFO, recorder_cost_us=cost_us, window_cost_us=window_cost_us, windows=windows)
    made = pace.report(info, 1)
    assert made is not None
    return made


def test_before_the_first_steps_there_is_no_report() -> None:
    pace = StepPace(StepTimeBaseline())
    assert pace.report(INFO, 1) is None
    train(pace, 1)
    made = report(pace, cost_us=50_000.0)
    assert (made.step, made.step_us, made.window_us) == (0, None, None)


def test_always_on_cost_is_that_of_late_and_windows_are_apart() -> None:
    pace = StepPace(StepTimeBaseline())
    # Given a slow start, then 20 us a step, and two windows of 4 ms
    train(pace, 10)
    report(pace, cost_us=50_000.0)
    train(pace, 100)
    made = report(pace, cost_us=52_000.0 + 8000.0, window_cost_us=8000.0, windows=2)
    assert made.always_on_us == pytest.approx(20.0)
    assert made.window_us == 4000.0
    assert (made.step, made.step_us, made.trained_us) == (109, 1000.0, 110_000.0)
    assert made.spent_us == 60_000.0


def test_a_window_also_costs_what_its_steps_were_slowed_by_but_not_a_checkpoint_in_it() -> None:
    pace = StepPace(StepTimeBaseline())
    train(pace, 20)
    train(pace, 2, wall_us=1500.0, profiled=True)
    made = report(pace, cost_us=4000.0, window_cost_us=3000.0, windows=1)
    assert made.window_us == 3000.0 + 2 * 500.0
    assert made.step_us == 1000.0
    train(pace, 1, wall_us=60e6, profiled=True)
    made = report(pace, cost_us=9000.0, window_cost_us=6000.0, windows=2)
    assert made.window_us == 3000.0 + 1000.0
    assert made.spent_us == 9000.0 + 2000.0


def test_the_pace_of_a_host_that_runs_ahead_is_that_of_its_device() -> None:
    pace = StepPace(StepTimeBaseline())
    for number in range(20):
        wall_us = 170_000.0 if number % 5 == 4 else 6000.0
        add(pace, StepRecord(step=number, start_unix_ns=1, wall_us=wall_us, device_us=PhaseTimes(forward=40_000.0)))
    made = report(pace, cost_us=0.0)
    assert made.step_us == 40_000.0


def test_the_pace_has_the_long_steps_that_the_step_time_leaves_out() -> None:
    pace = StepPace(StepTimeBaseline())
    for _ in range(10):
        train(pace, 9)
        train(pace, 1, wall_us=11_000.0)
    made = report(pace, cost_us=0.0)
    assert made.step_us == 1000.0
    assert made.pace_us == pytest.approx(2000.0, rel=0.1)


def test_where_every_step_is_a_checkpoint_that_is_the_step_time() -> None:
    pace = StepPace(StepTimeBaseline())
    for number in range(20):
        add(pace, StepRecord(step=number, start_unix_ns=1, wall_us=1000.0, tags=["checkpoint"]))
    assert report(pace, cost_us=0.0).step_us == 1000.0
