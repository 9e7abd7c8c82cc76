"""Steps of a profiled window that look wrong to the one rank that recorded it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import pytest

from rankscope.profiler.handover import ProfiledWindow
from rankscope.profiler.helper.step_time_baseline import LEAST, StepTimeBaseline
from rankscope.profiler.helper.writing.window_judge import WINDOWS, WindowJudge
from rankscope.runs.records import PhaseTimes, StepBreakdown, StepRecord

MS = 1000.0


def step(number: int, wall_ms: float, *tags: str, profiled: bool = False) -> StepRecord:
    return StepRecord(step=number, start_unix_ns=1, wall_us=wall_ms * MS, profiled=profiled, tags=[*tags])


def breakdown(number: int, *, window_ms: float = 10, truncated: bool = False) -> StepBreakdown:
    return StepBreakdown(
        step=number,
        start_unix_ns=1,
        device_kind="cpu",
        window_us=window_ms * MS,
        compute_us=0,
        communication_us=0,
        overlap_us=0,
        exposed_communication_us=0,
        memcpy_us=0,
        exposed_memcpy_us=0,
        idle_us=window_ms * MS,
        events=1,
        truncated=truncated,
    )


class Rank:
    """Judge of a rank's windows, and its baseline."""

    def __init__(self) -> None:
        self.baseline = StepTimeBaseline()
        self.judge = WindowJudge(self.baseline)

    def add(self, record: StepRecord) -> None:
        """Add a step, as the helper does."""
        self.baseline.add(record)
        self.judge.add(record)


def trained(walls_ms: Iterable[float]) -> Rank:
    """Return a rank after these steps without the profiler."""
    rank = Rank()
    for number, wall in enumerate(walls_ms):
        rank.add(step(number, wall))
    return rank


def wrong(rank: Rank, *walls_ms: float, first: int = 1000, tags: tuple[str, ...] = ()) -> list[int]:
    """Return the steps of a window that look wrong, counted from its first."""
    for number, wall in enumerate(walls_ms, start=first):
        rank.add(step(number, wall, *tags, profiled=True))
    last = first + len(walls_ms) - 1
    rows = rank.judge.judge(ProfiledWindow("", first, last), [breakdown(number) for number in range(first, last + 1)])
    return [row.step - first for row in rows if row.looked_wrong]


@pytest.mark.parametrize(
    ("walls_ms", "expected"),
    [
        ((10.0, 10.0, 10.0), []),
        ((19.0, 18.0, 19.0), []),  # the profiler may slow steps as much
        ((12.0, 60.0, 12.0), [1]),
        ((80.0, 60.0, 70.0), [0, 1, 2]),
    ],
)
def test_step_clearly_longer_than_the_surrounding_steps_looks_wrong(walls_ms: tuple[float, ...], expected: list[int]) -> None:
    noise = random.Random(1)
    assert wrong(trained(noise.gauss(10, 0.3) for _ in range(100)), *walls_ms) == expected


def test_single_slow_steps_and_the_start_do_not_set_the_typical_time() -> None:
    rank = trained([2000, 900] + [10, 10, 10, 500] * 6)
    assert wrong(rank, 11.0, 60.0, 11.0) == [1]


def test_longer_steps_are_typical_when_step_times_vary() -> None:
    noise = random.Random(1)
    assert wrong(trained(noise.uniform(5, 100) for _ in range(100)), 100.0, 120.0) == []


def test_profiler_overhead_is_learned_from_windows() -> None:
    rank = trained([10.0] * 50)
    # given a profiler that makes steps take four times as long: only the first windows look wrong
    wrongs = [wrong(rank, 40.0, 40.0, first=1000 + 10 * number) for number in range(WINDOWS + 2)]
    assert wrongs == [[0, 1]] * WINDOWS + [[]] * 2
    assert wrong(rank, 40.0, 80.0, 40.0, first=2000) == [1]
    # given a profiler without overhead: a slowdown that overhead would have excused looks wrong now
    rank = trained([10.0] * 50)
    assert wrong(rank, 18.0) == []
    for number in range(WINDOWS):
        assert wrong(rank, 10.0, first=2000 + number) == []
    assert wrong(rank, 18.0, first=3000) == [0]


@pytest.mark.parametrize("tag", ["checkpoint", "eval"])
def test_steps_long_by_design_neither_look_wrong_nor_set_the_baseline(tag: str) -> None:
    rank = trained([10.0] * 50)
    for number in range(50, 100):
        rank.add(step(number, 900.0, tag))
    assert wrong(rank, 900.0, tags=(tag,)) == []
    assert wrong(rank, 900.0, first=2000) == [0]


def test_no_step_looks_wrong_without_enough_steps_to_compare() -> None:
    assert wrong(trained([10.0] * (LEAST - 1)), 900.0) == []
    assert wrong(trained([10.0] * LEAST), 900.0) == [0]


def test_step_with_a_late_record_is_judged_by_its_window() -> None:
    rank = trained([10.0] * 50)
    rows = rank.judge.judge(ProfiledWindow("", 60, 61), [breakdown(60, window_ms=90), breakdown(61)])
    assert [row.looked_wrong is not None for row in rows] == [True, False]


def test_incomplete_profile_looks_wrong() -> None:
    rank = Rank()
    (row,) = rank.judge.judge(ProfiledWindow("", 5, 5), [breakdown(5, truncated=True)])
    assert row.looked_wrong == "the profile lacks a part of the step"
    rows = rank.judge.judge(ProfiledWindow("", 5, 7), [breakdown(5), breakdown(6)])
    assert {row.looked_wrong for row in rows} == {"the profile has 2 of its window's 3 steps"}
    rows = rank.judge.judge(ProfiledWindow("", 5, 6), [breakdown(5), breakdown(6)])
    assert {row.looked_wrong for row in rows} == {None}


def ahead(number: int, wall_ms: float, device_ms: float | None, *, profiled: bool = False) -> StepRecord:
    """Return a step of a host that runs ahead of its device."""
    device = None if device_ms is None else PhaseTimes(forward=device_ms * MS)
    return msgspec.structs.replace(step(number, wall_ms, profiled=profiled), device_us=device)


def test_host_catching_up_with_the_device_in_a_window_does_not_look_wrong() -> None:
    rank = Rank()
    for number in range(60):
        rank.add(ahead(number, 170 if number % 5 == 0 else 6, 40 if number else None))
    # The profiler waits for the device at its end, and the last record has not come yet.
    for number, device_ms in enumerate((44, 300, None), start=60):
        rank.add(ahead(number, 175, device_ms, profiled=True))
    rows = rank.judge.judge(ProfiledWindow("", 60, 63), [breakdown(number, window_ms=175) for number in range(60, 64)])
    assert [row.step for row in rows if row.looked_wrong] == [61]
    assert rows[1].looked_wrong is not None
    assert "300.0 ms; steps around it 40.0 ms" in rows[1].looked_wrong
