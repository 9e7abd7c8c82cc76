"""Comparison of two recorded runs, or of one before and after a step: what of each is compared, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.analysis.compare.simulated_steps import quantity
from tests.step_files import add_rows, load, rows_of, save, steps_file

from rankscope.analysis.compare.compare_result import CompareResult
from rankscope.analysis.compare.compare_runs import compare
from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError
from rankscope.runs.records import AttemptInfo, PhaseTimes, StepBreakdown, StepRecord
from rankscope.runs.small_files import create_attempt, write_record
from rankscope.runs.step_columns import HAS_BLOCKED, PROFILED

Synthetic = Callable[..., Any]


def test_imposed_wait_of_a_rank_equals_that_of_the_verdict(synthetic: Synthetic) -> None:
    # given the same job without, and with a rank that needs 60 ms longer
    before = synthetic("before", noise=0.05).write()
    after = synthetic("after", noise=0.05, seed=1, plan=lambda rank, _step: {"us": 60_000} if rank == 2 else None).write()
    comparison = compare([before, after]).comparisons[0]
    # then both commands give the same wait, per step and waiting rank
    evidence = {fact.name: fact for fact in analyze([after]).findings[0].evidence}["imposed_wait"]
    assert comparison.ranks[2].imposed_b_us == pytest.approx(evidence.value)
    assert evidence.detail == "per step and waiting rank"
    # and a mean over all ranks is shorter, as one of four does not wait
    imposed = sum(row.imposed_b_us or 0.0 for row in comparison.ranks)
    assert quantity(comparison, "waiting_us").b == pytest.approx(0.75 * imposed)
    assert "imposed wait" in comparison.summary
    assert "mean wait" in quantity(comparison, "waiting_us").label


def test_side_without_a_usable_step_has_no_differences(synthetic: Synthetic) -> None:
    # Given a run of which only warm-up steps lie before the step that divides it
    comparison = compare([synthetic(steps=60).write()], at=3).comparisons[0]
    step = quantity(comparison, "wall_us")
    assert (comparison.outcome, step.a, step.difference) == ("insufficient_data", None, None)
    assert not [item for item in comparison.quantities if item.role == "part"]


def test_phase_wall_times_are_compared_without_wait_signals(synthetic: Synthetic) -> None:
    a = synthetic("a", seed=1, steps=80, signals=False).write()
    b = synthetic("b", seed=2, steps=80, signals=False, phases={"forward": 50_000, "backward": 50_000}).write()
    comparison = compare([a, b]).comparisons[0]
    assert (comparison.basis, comparison.ranks) == ("wall", [])
    parts = [part for part in comparison.quantities if part.role == "part"]
    # data, optimizer and between_steps are recorded separately on one side only, so their time is in the rest of both
    assert {part.name for part in parts} == {"forward_us", "backward_us", "rest"}
    assert sum(part.difference or 0.0 for part in parts) == pytest.approx(quantity(comparison, "wall_us").difference)


def test_run_is_compared_before_and_after_a_step(synthetic: Synthetic) -> None:
    run = synthetic(steps=200, plan=lambda _rank, step: {"phase": "data", "us": 12_000} if step >= 90 else None).write()
    comparison = compare([run], at=90)
    assert (comparison.mode, [side.label for side in comparison.sides]) == ("before_after", ["before", "after"])
    assert [side.steps for side in comparison.sides] == [(0, 90), (90, 200)]
    assert [side.used_steps for side in comparison.sides] == [85, 110]
    value = comparison.comparisons[0]
    assert (value.outcome, value.differs) == ("worse", [])
    assert [quantity.name for quantity in value.quantities if quantity.role == "part" and quantity.outcome == "worse"] == [
        "own_data_us"
    ]
    assert "after is slower than before" in value.summary


@pytest.mark.parametrize("at", [0, 200, 5000])
def test_dividing_step_outside_the_run_is_an_error(synthetic: Synthetic, at: int) -> None:
    run = synthetic(steps=200).write()
    with pytest.raises(InputError, match=f"step {at} does not divide it: its steps are 0 to 199"):
        compare([run], at=at)


def test_warm_up_and_profiled_steps_are_left_out(synthetic: Synthetic) -> None:
    a, b = synthetic("a", seed=1, steps=100).write(), synthetic("b", seed=2, steps=100)
    # given profiled steps of B that take a second longer
    b.plan = lambda _rank, step: {"us": 1_000_000} if step % 20 == 10 else None
    path = b.write()
    for rank in range(4):
        rows = load(steps_file(path, rank))
        rows["flags"][rows["step"] % 20 == 10] = PROFILED
        save(steps_file(path, rank), rows)
    comparison = compare([a, path])
    assert comparison.sides[1].left_out == {"warm_up": 5, "profiled": 5}
    assert comparison.sides[1].used_steps == 90
    assert comparison.comparisons[0].outcome in ("same", "undecided")


def window(step: int, exposed_us: float) -> StepBreakdown:
    return StepBreakdown(
        step=step,
        start_unix_ns=10**18,
        device_kind="cuda",
        window_us=100_000,
        compute_us=80_000 - exposed_us,
        communication_us=20_000,
        overlap_us=20_000 - exposed_us,
        exposed_communication_us=exposed_us,
        memcpy_us=0,
        exposed_memcpy_us=0,
        idle_us=20_000,
        events=100,
    )


@pytest.mark.parametrize(("windows", "says"), [(8, "worse"), (2, "insufficient_data")])
def test_windows_show_exposed_communication_and_overlap(
    synthetic: Synthetic, add_windows: Callable[..., None], windows: int, says: str
) -> None:
    # given as many windows of two steps, with 2 and with 9 ms of exposed communication
    rng = np.random.default_rng(0)
    runs = []
    for name, exposed_us in (("a", 2_000.0), ("b", 9_000.0)):
        run = synthetic(name, steps=100).write()
        runs.append(run)
        steps = [10 + 10 * number + part for number in range(windows) for part in (0, 1)]
        for rank in range(4):
            add_windows(run, rank, [window(step, exposed_us + 200 * rng.standard_normal()) for step in steps], [])
    comparison = compare(runs).comparisons[0]
    exposed, overlap = quantity(comparison, "exposed_communication_us"), quantity(comparison, "overlap_ratio")
    assert (exposed.outcome, overlap.outcome) == (says, says)
    assert exposed.difference == pytest.approx(7_000, rel=0.1)
    assert exposed.of_step == pytest.approx(0.07, rel=0.1)
    assert overlap.difference == pytest.approx(-0.35, rel=0.1)
    if says == "insufficient_data":
        assert overlap.why == "2 profiled windows on one side; 3 are needed"


def test_memory_is_compared_without_a_judgement(synthetic: Synthetic) -> None:
    runs = []
    for name, peak in (("a", 2**30), ("b", 2**31)):
        run = synthetic(name, steps=60).write()
        for rank in range(4):
            rows = load(steps_file(run, rank))
            rows["allocated_bytes"] = 2**29
            rows["peak_allocated_bytes"] = peak + rows["step"]
            save(steps_file(run, rank), rows)
        runs.append(run)
    comparison = compare(runs).comparisons[0]
    memory = quantity(comparison, "peak_allocated_bytes")
    assert (memory.a, memory.b, memory.outcome, memory.typical) == (2**30 + 59, 2**31 + 59, "untested", None)
    assert [item.name for item in comparison.quantities if item.role == "single"] == ["peak_allocated_bytes"]


def test_the_last_attempt_is_compared_unless_another_is_named(synthetic: Synthetic) -> None:
    # given a run that was started again and became slower
    run = synthetic("a", steps=100).write()
    slower = synthetic("b", steps=100, phases={"forward": 70_000, "backward": 60_000}).write()
    create_attempt(run, AttemptInfo(attempt=1, start_unix_ns=10**18, world_size=4))
    (slower / "attempts" / "000" / "ranks").rename(run / "attempts" / "001" / "ranks")
    # when
    comparison = compare([run / "attempts" / "000", run])
    # then
    assert [side.attempt for side in comparison.sides] == [0, 1]
    assert [side.label for side in comparison.sides] == ["synthetic in attempt 0", "synthetic in attempt 1"]
    assert comparison.comparisons[0].outcome == "worse"
    assert comparison.sides[1].warnings == ["the last of 2 attempts (number 1) is compared"]
    with pytest.raises(InputError, match="the same run as"):
        compare([run, run / "attempts" / "001"])


def test_link_to_a_run_is_the_same_run(synthetic: Synthetic, tmp_path: Path) -> None:
    run = synthetic("a").write()
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(InputError, match="compared with itself"):
        compare([run, tmp_path / "link"])


def test_runs_that_cannot_be_compared_are_a_one_line_error(synthetic: Synthetic, tmp_path: Path) -> None:
    run, empty = synthetic("a").write(), synthetic("empty", steps=0).write()
    with pytest.raises(InputError, match="not one step is recorded in attempt 0"):
        compare([run, empty])
    with pytest.raises(InputError, match="no such file or folder"):
        compare([run, tmp_path / "nowhere"])
    with pytest.raises(InputError, match=f"a folder of runs; name one of them, such as {run.parent}"):
        compare([run, tmp_path])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="not a run directory"):
        compare([run, tmp_path / "nothing"])
    with pytest.raises(InputError, match="no such attempt"):
        compare([run, run / "attempts" / "007"])
    newer = synthetic("newer").write()
    info = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps({**info, "schema": "rankscope.run/3"}))
    with pytest.raises(InputError, match="upgrade rankscope"):
        compare([run, newer])


def test_absurd_records_are_left_out(synthetic: Synthetic) -> None:
    a, b = synthetic("a", seed=1, steps=80).write(), synthetic("b", seed=2, steps=80).write()
    hostile = rows_of(
        StepRecord(step=1000, start_unix_ns=10**18, wall_us=0.0),
        StepRecord(step=1001, start_unix_ns=10**18, wall_us=1e300),
        StepRecord(step=1002, start_unix_ns=10**18, wall_us=10.0, phases_us=PhaseTimes(forward=3e38), cpu_us=-3e38),
    )
    hostile["flags"][2] = HAS_BLOCKED
    hostile["blocked_forward_us"][2] = -np.inf
    for rank in range(4):
        add_rows(steps_file(b, rank), hostile)
    clean, damaged = compare([a, b], min_change=0.2), compare([b, a], min_change=0.2)
    assert clean.sides[1].used_steps == 75
    assert clean.sides[1].left_out == {"warm_up": 5, "incomplete": 1, "without_own_time": 1}
    assert any("ranks 0, 1, 2, 3" in text and "times make no sense" in text for text in clean.sides[1].warnings)
    assert (clean.comparisons[0].outcome, damaged.comparisons[0].outcome) == ("same", "same")


def test_several_runs_of_one_world_size_are_each_compared_with_the_first(synthetic: Synthetic) -> None:
    runs = [synthetic(name, seed=seed, steps=90).write() for seed, name in enumerate("abc")]
    result = compare(runs)
    names = [side.label for side in result.sides]
    assert names == [f"synthetic in {run.name}" for run in runs]
    assert [(comparison.a, comparison.b) for comparison in result.comparisons] == [(names[0], names[1]), (names[0], names[2])]
    assert result.scaling is None


def test_other_differences_of_the_runs_are_listed(synthetic: Synthetic) -> None:
    a, b = synthetic("a").write(), synthetic("b", device_kind="cpu").write()
    write_record(
        b / "attempts" / "000" / "attempt.json",
        AttemptInfo(attempt=0, start_unix_ns=1, world_size=4, backend="gloo", versions={"torch": "2.13"}, layout={"dp": 4}),
    )
    write_record(
        a / "attempts" / "000" / "attempt.json",
        AttemptInfo(attempt=0, start_unix_ns=1, world_size=4, backend="nccl", versions={"torch": "2.12", "python": "3.11"}),
    )
    comparison = compare([a, b]).comparisons[0]
    assert comparison.differs == ["backend: nccl -> gloo", "devices: cuda -> cpu", "torch: 2.12 -> 2.13"]


def test_rank_without_records_is_reported_and_the_rest_is_compared(synthetic: Synthetic) -> None:
    a, b = synthetic("a", seed=1, steps=80).write(), synthetic("b", seed=2, steps=80, lost_after={3: 10}).write()
    comparison = compare([a, b])
    assert comparison.sides[1].ranks == 3
    assert "1 of 4 ranks have no, or few, usable steps" in comparison.sides[1].warnings
    # the lost rank's samples are counted
    assert comparison.sides[1].samples_per_step == pytest.approx(32)


def test_simulated_readings_are_labelled_and_all_numbers_are_finite(synthetic: Synthetic) -> None:
    a, b = synthetic("a", seed=1).write(), synthetic("b", seed=2, simulated=True).write()
    comparison = compare([a, b])
    assert [side.simulated for side in comparison.sides] == [False, True]
    text = msgspec.json.encode(comparison)
    assert msgspec.json.decode(text, type=CompareResult) == comparison


def test_missing_rank_infos_do_not_prevent_a_comparison(synthetic: Synthetic) -> None:
    a, b = synthetic("a", seed=1, steps=80).write(), synthetic("b", seed=2, steps=80).write()
    for file in [*a.glob("attempts/*/ranks/*/rank.json"), *b.glob("attempts/*/attempt.json")]:
        file.unlink()
    comparison = compare([a, b]).comparisons[0]
    assert comparison.outcome in ("same", "undecided")
    assert {row.host_a for row in comparison.ranks} == {None}


@pytest.mark.parametrize(("every", "basis"), [(8, "own"), (0, "wall")])
def test_own_times_of_evenly_spread_steps_represent_all_steps(synthetic: Synthetic, every: int, basis: str) -> None:
    def sample_counts(_rank: int, step: int) -> dict[str, Any]:
        has = step % every == 0 if every else step < 20
        return {} if has else {"blocked_us": None}

    a, b = (synthetic(name, seed=seed, steps=160, fields=sample_counts).write() for seed, name in enumerate("ab"))
    assert compare([a, b]).comparisons[0].basis == basis
