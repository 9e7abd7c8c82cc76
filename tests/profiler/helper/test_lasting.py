"""What the profiler costs between its windows, by steps before and after the first one."""

from __future__ import annotations

import pytest

from rankscope.profiler.helper.lasting import LEAST_BEFORE, LastingCost
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.runs.records import PhaseTimes, StepRecord


def record(number: int, wall_us: float, *, profiled: bool = False, tags: tuple[str, ...] = ()) -> StepRecord:
    phases = PhaseTimes(forward=wall_us)
    return StepRecord(step=number, start_unix_ns=number, wall_us=wall_us, phases_us=phases, profiled=profiled, tags=list(tags))


def lasting(*, before: int, after_us: float, noise_us: float = 10, after: int = 100) -> LastingCost:
    baseline = StepTimeBaseline()
    cost = LastingCost(baseline)
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


def test_longer_steps_after_the_first_window_are_the_recorders_cost() -> None:
    cost = lasting(before=20, after_us=1050)
    assert cost.us_per_step == pytest.approx(50, abs=10)
    assert cost.us == pytest.approx(50 * 203, abs=10 * 203)


@pytest.mark.parametrize(
    ("before", "after_us", "noise_us"),
    [(20, 1000, 10), (20, 950, 10), (20, 1050, 400), (20, 1800, 10), (LEAST_BEFORE - 1, 1050, 10)],
    ids=["same", "shorter", "within the noise", "by far too much", "no steps to compare with"],
)
def test_other_differences_are_not(before: int, after_us: float, noise_us: float) -> None:
    cost = lasting(before=before, after_us=after_us, noise_us=noise_us)
    assert cost.us == 0


def test_a_cost_is_not_known_before_enough_steps_followed() -> None:
    cost = lasting(before=20, after_us=1050, after=20)
    assert (cost.us_per_step, cost.us) == (None, 0)
