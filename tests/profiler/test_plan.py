"""Plan of profiled windows: far enough ahead of every rank, and within the budget."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rankscope.profiler.plan import (
    CACHE_SECONDS,
    FIRST_DEVICE_WINDOW_US,
    MAX_STEPS,
    UNKNOWN_SPACING,
    Planner,
    RankReport,
    Schedule,
    affordable_from,
    poll_seconds,
    report_seconds,
    spacing,
)
from rankscope.profiler.settings import RecorderSettings
from rankscope.runs.records import PlannedWindow

STEP_US = 10_000.0


def planner(
    *, every: int | None = None, steps: int = 3, world_size: int = 2, budget: float = 0.01, on_device: bool = False
) -> Planner:
    """Return a planner with the default lead of 10 s and 50 steps, and a first window at step 20."""
    settings = RecorderSettings(
        run_dir="", run_id="", name="", start_unix_ns=1, window_every=every, window_steps=steps, budget=budget
    )
    return Planner.of(settings, world_size, on_device=on_device)


def report(rank: int, step: int, *, clock: str | None = None, at: float = 0.0, **more: float | None) -> RankReport:
    """Return a report of a rank on a host of its own, at second ``at``, with steps of 10 ms, whose window cost 10 ms."""
    usual: dict[str, float | None] = {"step_us": STEP_US, "always_on_us": 20.0, "window_us": 10_000.0}
    values = {"trained_us": step * STEP_US, "spent_us": step * 20.0, **usual, **more}
    return RankReport(rank=rank, step=step, clock=clock or f"host{rank}", unix_ns=unix_ns(at), **values)  # type: ignore[arg-type]


def unix_ns(second: float) -> int:
    """Return the Unix time of a monotonic time of these tests."""
    return round((1000 + second) * 1e9)


def receive(plan: Planner, now: float, *reports: RankReport) -> None:
    """Pass reports to the planner at second ``now``."""
    for report in reports:
        plan.report(report, now, unix_ns(now))


def capture(plan: Planner, now: float, *, steps: int = 3, ranks: list[int] | None = None) -> PlannedWindow | str | None:
    """Request a capture."""
    return plan.capture("id", steps=steps, ranks=ranks, keep_trace=False, now=now, unix_ns=1)


@given(first=st.integers(1, 50), every=st.integers(0, 30), steps=st.integers(0, 12))
def test_schedule_yields_periodic_windows_without_overlap(first: int, every: int, steps: int) -> None:
    schedule = Schedule(first, every, steps)
    profiled: list[int] = []
    for step in range(200):
        profiled.extend(range(step, step + schedule.starting(step)))
    assert len(set(profiled)) == len(profiled)
    if steps:
        wanted = [step for step in range(first, 300) if ((step - first) % every if every else step - first) < steps]
        assert [step for step in profiled if step < 150] == [step for step in wanted if step < 150]


@given(
    schedule=st.builds(Schedule, first=st.integers(1, 50), every=st.integers(0, 40), steps=st.integers(0, 12)),
    first=st.integers(1, 200),
    steps=st.integers(1, 20),
)
def test_clear_window_is_the_next_one_apart_from_the_schedule(schedule: Schedule, first: int, steps: int) -> None:
    taken = {step + more for step in range(400) if schedule.starting(step) for more in range(-1, schedule.starting(step) + 1)}
    free = [start for start in range(first, 350) if taken.isdisjoint(range(start, start + steps))]
    assert schedule.clear(first, steps) == (free[0] if free else None)


@given(
    step_us=st.floats(100, 1e6),
    always_on_us=st.floats(0, 500),
    window_us=st.floats(1, 1e7),
    budget=st.floats(0.001, 0.5),
)
def test_cost_at_the_computed_spacing_equals_the_budget(
    step_us: float, always_on_us: float, window_us: float, budget: float
) -> None:
    costs = report(0, 100, step_us=step_us, always_on_us=always_on_us, window_us=window_us)
    steps = spacing(costs, budget)
    if always_on_us >= budget * step_us:
        assert math.isinf(steps)
    else:
        assert (always_on_us * steps + window_us) / (step_us * steps) == pytest.approx(budget)


def test_windows_of_unknown_cost_are_rare() -> None:
    assert spacing(report(0, 100, window_us=None), 0.01) == UNKNOWN_SPACING


@given(spent=st.floats(0, 1e6), trained=st.floats(1e5, 1e9), window=st.floats(0, 1e6))
def test_overspent_rank_waits_until_the_budget_covers_the_window(spent: float, trained: float, window: float) -> None:
    costs = report(0, 1000, spent_us=spent, trained_us=trained, window_us=window)
    steps = affordable_from(costs, 0.01, window) - 1000
    assert steps >= 0
    total = spent + window + 20.0 * steps
    assert total <= 0.01 * (trained + STEP_US * steps) * (1 + 1e-9)


@given(
    slowest=st.integers(60, 10_000),
    lead=st.integers(0, 5),
    step_us=st.floats(500, 1e6),
    age=st.floats(0, 1.0),
    costs=st.lists(st.floats(1, 1e6), min_size=4, max_size=4),
)
def test_window_is_ahead_of_all_ranks_and_paced_by_the_costliest(
    slowest: int, lead: int, step_us: float, age: float, costs: list[float]
) -> None:
    plan = planner(world_size=4)
    reports = [
        report(rank, slowest + lead * (rank == 3), step_us=step_us, window_us=cost, always_on_us=0.0)
        for rank, cost in enumerate(costs)
    ]
    result, now = None, 100.0
    for _ in range(4):
        receive(plan, now, *(msgspec.structs.replace(item, unix_ns=unix_ns(now)) for item in reports))
        result = plan.due(now + age, 1)
        if result is not None:
            break
        now += plan.period
    assume(result is not None)
    assert result is not None
    front = slowest + lead + age * 1e6 / step_us
    assert result.first >= front + 50
    assert (result.first - front) * step_us / 1e6 >= 10 - 1e-6
    assert result.first - 20 >= max(spacing(item, 0.01) for item in reports)
    assert (result.steps, result.ranks, result.reason, result.keep_trace) == (3, None, "schedule", False)


def test_windows_are_announced_one_at_a_time_after_cost_is_measured() -> None:
    plan = planner()
    firsts: list[int] = []
    costs: list[float] = []
    # Given two ranks whose first window is still ahead
    for second in range(600):
        step = second * 100
        spent = 10_000.0 * (1 + len(firsts)) + 20.0 * step
        for rank in (0, 1):
            known_us = None if step < 30 else 10_000.0
            receive(plan, second, report(rank, step, at=second, window_us=known_us, spent_us=spent))
        window = plan.due(float(second), 1)
        if window is not None:
            # Then each is announced in time, after the previous one is over
            assert window.first >= step + 1000
            assert not firsts or firsts[-1] + 3 <= step
            firsts.append(window.first)
            costs.append((spent + 10_000.0) / (window.first * STEP_US))
    # And their cost stays within the budget: 10 ms each, and 20 us a step, of 10 ms
    assert len(firsts) > 10
    assert max(costs) <= 0.01


def test_ranks_over_budget_get_captures_but_no_scheduled_windows() -> None:
    plan = planner()
    for second in range(100):
        for rank in (0, 1):
            receive(plan, second, report(rank, 1000 + 100 * second, at=second, always_on_us=150.0 if rank else 1.0))
        assert plan.due(float(second), 1) is None
    assert isinstance(capture(plan, 100.0), PlannedWindow)


def test_numeric_schedule_is_not_changed_by_the_planner() -> None:
    plan = planner(every=100)
    for second in range(100):
        for rank in (0, 1):
            receive(plan, second, report(rank, 1000 + 100 * second, at=second))
        assert plan.due(float(second), 1) is None
    window = capture(plan, 100.0, steps=5)
    assert isinstance(window, PlannedWindow)
    taken = {step for start in range(20, 100_000, 100) for step in range(start - 1, start + 4)}
    assert taken.isdisjoint(range(window.first, window.first + 5))


def test_capture_waits_for_reports_is_ahead_of_all_ranks_and_rate_limited() -> None:
    plan = planner()
    assert capture(plan, 0.0) is None, "nobody has said how fast it goes"
    receive(plan, 1, report(0, 500, at=1))
    assert capture(plan, 1.0) is None, "the other rank may be far ahead"
    receive(plan, 1, report(1, 900, at=1))
    window = capture(plan, 1.5, ranks=[1, 0, 1])
    assert isinstance(window, PlannedWindow)
    assert window.first >= 900 + 50 + 1000
    assert (window.steps, window.ranks, window.reason, window.request) == (3, [0, 1], "capture", "id")
    assert "ask again in" in str(capture(plan, 2.0))
    assert isinstance(capture(plan, 32.0), PlannedWindow)


def test_missing_rank_delays_captures_only_for_a_limited_time() -> None:
    plan = planner(world_size=3)
    for second in range(31):
        receive(plan, second, report(0, 500, at=second))
    assert capture(plan, 29.0) is None
    assert isinstance(capture(plan, 31.0), PlannedWindow)


@pytest.mark.parametrize(
    ("steps", "ranks", "reason"),
    [(0, None, "1 to 50"), (MAX_STEPS + 1, None, "1 to 50"), (3, [2], "no such rank"), (3, [], "no such rank")],
)
def test_invalid_capture_is_refused_with_a_reason(steps: int, ranks: list[int] | None, reason: str) -> None:
    plan = planner()
    for rank in (0, 1):
        receive(plan, 1, report(rank, 500, at=1))
    assert reason in str(capture(plan, 1.0, steps=steps, ranks=ranks))
    assert isinstance(capture(plan, 1.0), PlannedWindow), "a refusal takes nobody's turn"


def test_capture_is_refused_without_windows_or_space_between_windows() -> None:
    assert "switched off" in str(capture(planner(steps=0), 0.0))
    plan = planner(every=5)
    for rank in (0, 1):
        receive(plan, 1, report(rank, 500, at=1))
    assert "no room" in str(capture(plan, 1.0))


def test_polling_and_reporting_are_less_frequent_in_large_jobs() -> None:
    assert [poll_seconds(size, 10.0) for size in (2, 200, 1024)] == [1.0, 1.0, 5.12]
    assert [report_seconds(size) for size in (2, 200, 1024)] == [30.0, 30.0, 51.2]
    # In a job of any size, a window is announced so early that every rank reads the file twice before it.
    plan = planner(world_size=10_000)
    receive(plan, 0, report(0, 500))
    window = capture(plan, 600.0)
    assert isinstance(window, PlannedWindow)
    assert (window.first - 500 - 60_000) * STEP_US / 1e6 >= 2 * plan.period


@pytest.mark.parametrize("late_s", [0.0, 25.0])
def test_the_step_of_a_rank_is_extrapolated_from_an_old_report(late_s: float) -> None:
    # Given a rank ahead of the others, whose report was 25 s old when it was received, or has been for 25 s
    plan = planner()
    receive(plan, 100 - late_s, report(1, 2000, at=75))
    receive(plan, 100, report(0, 500, at=100))
    window = capture(plan, 100.0)
    assert isinstance(window, PlannedWindow)
    assert 2000 + 2500 + 1000 <= window.first <= 2000 + 2500 + 1000 + 5


def test_rank_with_rare_long_steps_is_extrapolated_by_the_pace() -> None:
    plan = planner()
    receive(plan, 75, report(1, 500, at=75, pace_us=2 * STEP_US))
    receive(plan, 100, report(0, 500, at=100))
    window = capture(plan, 100.0)
    assert isinstance(window, PlannedWindow)
    assert 500 + 1250 + 1000 <= window.first <= 500 + 1250 + 1000 + 5


@pytest.mark.parametrize("clock_error_s", [-1e6, 1e6])
def test_wrong_clock_delays_a_window_by_at_most_one_report_interval(clock_error_s: float) -> None:
    plan = planner()
    receive(plan, 100, report(0, 500, at=100), report(1, 500, at=max(-1000, 100 + clock_error_s)))
    window = capture(plan, 100.0)
    assert isinstance(window, PlannedWindow)
    assert 1500 <= window.first <= 1505 + (report_seconds(2) + CACHE_SECONDS) * 100


def test_capture_on_a_single_host_begins_in_a_third_of_the_time() -> None:
    plan = planner()
    receive(plan, 1, *(report(rank, 500, at=1, clock="host") for rank in (0, 1)))
    window = capture(plan, 1.0)
    assert isinstance(window, PlannedWindow)
    assert 500 + 333 <= window.first <= 500 + 340


def test_killed_rank_with_a_stale_report_is_not_waited_for() -> None:
    plan = planner()
    # Given a rank in the middle of the first window, which is killed
    receive(plan, 0, report(1, 21, spent_us=0.0))
    windows = []
    for second in range(1, 400):
        receive(plan, second, report(0, 100 * second, at=second, spent_us=0.0), report(1, 21, spent_us=0.0))
        windows.append(plan.due(float(second), 1))
    assert not any(windows[:100])
    assert any(windows)


def test_rank_with_a_removed_report_is_not_waited_for_and_may_return() -> None:
    plan = planner()
    receive(plan, 0, report(0, 500))
    plan.end(1)
    assert isinstance(capture(plan, 0.0), PlannedWindow)
    receive(plan, 40, report(0, 4500, at=40), report(1, 90_000, at=40))
    window = capture(plan, 40.0)
    assert isinstance(window, PlannedWindow)
    assert window.first > 90_000


def test_replacement_planner_continues_after_the_last_window() -> None:
    plan = planner()
    plan.resume(3000, 3)
    plan.resume(1000, 3)
    for second in range(30):
        receive(plan, second, *(report(rank, 100 * second, at=second) for rank in (0, 1)))
        assert plan.due(float(second), 1) is None
    receive(plan, 31, *(report(rank, 3100, at=31) for rank in (0, 1)))
    window = capture(plan, 31.0)
    assert isinstance(window, PlannedWindow)
    assert window.first > 3003


def test_first_device_window_begins_once_the_budget_covers_the_loading() -> None:
    # Given two ranks on devices, the second of which also pays more without windows
    plan = planner(on_device=True)
    assert plan.schedule.starting(20) == 0, "no rank begins it by itself"
    always_on_us = (0.0, 50.0)
    window = None
    for second in range(1000):
        step = second * 100
        reports = [
            report(rank, step, at=second, window_us=None, always_on_us=cost, spent_us=cost * step)
            for rank, cost in enumerate(always_on_us)
        ]
        receive(plan, second, *reports)
        window = plan.due(float(second), 1)
        if window is not None:
            break
    # Then it is within the budget on both: 10 ms steps, 1 %, of which the second has half left
    assert window is not None
    assert FIRST_DEVICE_WINDOW_US + 50.0 * window.first <= 0.01 * STEP_US * window.first * (1 + 1e-9)
    assert window.first < 1.2 * FIRST_DEVICE_WINDOW_US / 50.0


def test_second_device_window_waits_until_the_first_is_within_the_budget() -> None:
    plan = planner(on_device=True)
    firsts: list[int] = []
    for second in range(2000):
        step = second * 100
        begun = [first for first in firsts if first + 4 < step]
        # Given a first window that cost 3 s with the loading of the profiler, and others that cost 0.1 s
        cost_us = None if not begun else 3e6 if len(begun) == 1 else 1e5
        spent_us = 3e6 * bool(begun) + 1e5 * max(0, len(begun) - 1)
        reports = [report(rank, step, at=second, window_us=cost_us, always_on_us=0.0, spent_us=spent_us) for rank in (0, 1)]
        receive(plan, second, *reports)
        window = plan.due(float(second), 1)
        if window is not None:
            spent_with_it = spent_us + (FIRST_DEVICE_WINDOW_US if cost_us is None else cost_us)
            assert spent_with_it <= 0.01 * STEP_US * window.first * (1 + 1e-9)
            firsts.append(window.first)
    assert len(firsts) > 3


def test_fixed_schedule_on_a_device_is_not_changed() -> None:
    assert planner(on_device=True, every=0).schedule.starting(20) == 3
    assert planner(on_device=True, every=100).schedule.starting(120) == 3


@pytest.mark.slow
def test_windows_of_a_thousand_ranks_are_early_and_within_the_budget() -> None:
    # Given 1,024 ranks with steps of 100 ms, whose reports are up to two minutes old when rank 0 reads them
    size, window_us = 1024, 50_000.0
    plan = planner(world_size=size)
    interval = report_seconds(size)
    firsts: list[int] = []
    turn = 0.0

    def report_at(rank: int, second: float) -> RankReport:
        step = int(second * 10) + rank % 2
        windows = sum(first + 4 <= step for first in [20, *firsts])
        cost = windows * window_us + 20.0 * step
        known_us = window_us if windows else None
        return report(rank, step, at=second, step_us=1e5, window_us=known_us, spent_us=cost, trained_us=step * 1e5)

    for _ in range(400):
        turn += plan.period
        receive(plan, turn, report_at(0, turn))
        # The ranks report at different times, and are read in turn
        for rank in range(1, size):
            read = turn - (turn + rank * 0.05) % interval
            if turn - read < plan.period and turn > CACHE_SECONDS + interval:
                receive(plan, turn, report_at(rank, read - CACHE_SECONDS - (rank * 0.618) % interval))
        window = plan.due(turn, 1)
        if window is not None:
            # Then each window is far enough ahead of the foremost rank, and is announced when the one before is over
            assert window.first / 10 - turn >= 2.5 * plan.period
            assert window.first / 10 - turn <= 2.5 * plan.period + CACHE_SECONDS + interval
            assert not firsts or turn * 10 > firsts[-1] + 3
            firsts.append(window.first)
    assert len(firsts) >= 4
    last = firsts[-1]
    assert (len(firsts) + 1) * window_us + 20.0 * last <= 0.01 * last * 1e5
