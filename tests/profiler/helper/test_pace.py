"""Step times of a rank: their baseline, its reported pace, and the recorder's cost, always on and per window."""

from __future__ import annotations

import msgspec
import pytest

from rankscope.profiler.helper.coordination.pace import StepPace
from rankscope.profiler.helper.cupti_cost import LEAST_BEFORE, CuptiCost
from rankscope.profiler.helper.step_time_baseline import LEAST, RECENT, StepTimeBaseline, TypicalTime
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


def test_report_exists_only_after_the_first_step() -> None:
    pace = StepPace(StepTimeBaseline())
    assert pace.report(INFO, 1) is None
    train(pace, 1)
    made = report(pace, cost_us=50_000.0)
    assert (made.step, made.step_us, made.window_us) == (0, None, None)


def test_always_on_cost_is_recent_and_excludes_windows() -> None:
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


def test_window_cost_includes_slower_steps_but_no_checkpoint() -> None:
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


def test_pace_of_a_host_running_ahead_is_the_device_pace() -> None:
    pace = StepPace(StepTimeBaseline())
    for number in range(20):
        wall_us = 170_000.0 if number % 5 == 4 else 6000.0
        add(pace, StepRecord(step=number, start_unix_ns=1, wall_us=wall_us, device_us=PhaseTimes(forward=40_000.0)))
    made = report(pace, cost_us=0.0)
    assert made.step_us == 40_000.0


def test_pace_includes_long_steps_that_the_step_time_omits() -> None:
    pace = StepPace(StepTimeBaseline())
    for _ in range(10):
        train(pace, 9)
        train(pace, 1, wall_us=11_000.0)
    made = report(pace, cost_us=0.0)
    assert made.step_us == 1000.0
    assert made.pace_us == pytest.approx(2000.0, rel=0.1)


def test_step_time_is_the_checkpoint_time_when_every_step_has_one() -> None:
    pace = StepPace(StepTimeBaseline())
    for number in range(20):
        add(pace, StepRecord(step=number, start_unix_ns=1, wall_us=1000.0, tags=["checkpoint"]))
    assert report(pace, cost_us=0.0).step_us == 1000.0


def record(number: int, wall_us: float, *, profiled: bool = False, tags: tuple[str, ...] = ()) -> StepRecord:
    phases = PhaseTimes(forward=wall_us)
    return StepRecord(step=number, start_unix_ns=number, wall_us=wall_us, phases_us=phases, profiled=profiled, tags=list(tags))


def cupti_cost(*, before: int, after_us: float, noise_us: float = 10, after: int = 100) -> CuptiCost:
    baseline = StepTimeBaseline()
    cost = CuptiCost(baseline)
    times = [1000.0] * before + [3000.0] * 3 + [after_us] * after
    for number, time in enumerate(times):
        # Long steps of another kind are no part of the comparison.
        for step in (
            record(number, time + noise_us * (number % 5 - 2) / 2, profiled=before <= number < before + 3),
            record(number, 90_000, tags=("eval",)),
        ):
            baseline.add(step)
            cost.add(step)
    return cost


def test_longer_steps_after_the_first_window_are_recorder_cost() -> None:
    cost = cupti_cost(before=20, after_us=1050)
    assert cost.us_per_step == pytest.approx(50, abs=10)
    assert cost.us == pytest.approx(50 * 203, abs=10 * 203)


@pytest.mark.parametrize(
    ("before", "after_us", "noise_us"),
    [(20, 1000, 10), (20, 950, 10), (20, 1050, 400), (20, 1800, 10), (LEAST_BEFORE - 1, 1050, 10)],
    ids=["same", "shorter", "within the noise", "by far too much", "no steps to compare with"],
)
def test_other_step_time_differences_are_not_recorder_cost(before: int, after_us: float, noise_us: float) -> None:
    cost = cupti_cost(before=before, after_us=after_us, noise_us=noise_us)
    assert cost.us == 0


def test_cost_is_unknown_until_enough_steps_followed() -> None:
    cost = cupti_cost(before=20, after_us=1050, after=20)
    assert (cost.us_per_step, cost.us) == (None, 0)


def step(number: int, wall_us: float, *tags: str, device_us: float | None = None, profiled: bool = False) -> StepRecord:
    device = None if device_us is None else PhaseTimes(forward=device_us)
    return StepRecord(step=number, start_unix_ns=1, wall_us=wall_us, tags=[*tags], device_us=device, profiled=profiled)


def test_profiled_and_checkpoint_steps_are_not_typical_but_keep_wall_time() -> None:
    baseline = StepTimeBaseline()
    for number in range(LEAST):
        baseline.add(step(number, 100.0))
        baseline.add(step(number, 900.0, profiled=True))
        baseline.add(step(number, 5000.0, "checkpoint"))
    assert baseline.typical() == TypicalTime(100.0, 0.0)
    assert baseline.walls_us() == [100.0, 900.0, 5000.0] * LEAST


@pytest.mark.parametrize("least", [1, 5, LEAST])
def test_typical_time_needs_enough_steps(least: int) -> None:
    baseline = StepTimeBaseline()
    for number in range(least):
        assert baseline.typical(least) is None
        baseline.add(step(number, 100.0))
    assert baseline.typical(least) is not None


def test_single_slow_steps_do_not_move_the_baseline_and_old_steps_expire() -> None:
    baseline = StepTimeBaseline()
    for number in range(RECENT):
        baseline.add(step(number, 5000.0))
    for number in range(RECENT):
        baseline.add(step(number, 9000.0 if number % 8 == 0 else 100.0))
    assert baseline.typical() == TypicalTime(100.0, 0.0)
    assert len(baseline.last_us(16)) == 16


def test_device_baseline_uses_only_steps_with_device_times() -> None:
    baseline = StepTimeBaseline()
    for number in range(LEAST):
        baseline.add(step(number, 7.0))
    assert not baseline.on_device
    for number in range(LEAST):
        baseline.add(step(number, 7.0, device_us=40.0))
        baseline.add(step(number, 170.0))
    assert [baseline.on_device, baseline.typical()] == [True, TypicalTime(40.0, 0.0)]
    assert baseline.comparable_us(step(0, 170.0)) is None
