"""Comparisons of two runs with known ground truth, or of one run before and after a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.compare.made_up_run import MadeUp
from tests.step_files import add_rows, load, rows_of, save, steps_file

from rankscope.analysis.compare.comparable_steps import comparable_steps
from rankscope.analysis.compare.compare_result import CompareResult, Comparison, Quantity, RankShift
from rankscope.analysis.compare.compare_runs import compare
from rankscope.analysis.compare.pair import compare_pair
from rankscope.analysis.compare.quantities import PARTS
from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError
from rankscope.runs.records import PHASES, AttemptInfo, PhaseTimes, StepBreakdown, StepRecord
from rankscope.runs.small_files import create_attempt, write_record
from rankscope.runs.step_columns import HAS_BLOCKED, PROFILED

Synthetic = Callable[..., Any]


def pair(a: MadeUp, b: MadeUp, *, min_change: float = 0.01) -> Comparison:
    return compare_pair(comparable_steps(a.recording(), "A"), comparable_steps(b.recording(), "B"), min_change=min_change)


def quantity(comparison: Comparison, name: str) -> Quantity:
    return next(item for item in comparison.quantities if item.name == name)


def slowed(phase: str, by_us: float) -> dict[str, float]:
    phases = dict(MadeUp().phases)
    phases[phase] += by_us
    return phases


QUIET = MadeUp(name="a", seed=1)


def test_of_equal_runs_hardly_one_pair_in_twenty_differs_in_anything() -> None:
    # given pairs of equal runs with autocorrelated noise, and every difference matters
    differing = 0
    for seed in range(0, 40, 2):
        comparison = pair(MadeUp(seed=seed), MadeUp(seed=seed + 1), min_change=1e-9)
        rows: list[Quantity | RankShift] = [*comparison.quantities, *comparison.ranks]
        shifts = [shift for row in rows for shift in (row.typical, row.average) if shift is not None]
        assert shifts
        differing += any(shift.real for shift in shifts)
    # then: 1 of 20 is expected at most, and 4 or more would be chance once in sixty times
    assert differing <= 3


@pytest.mark.parametrize("phase", PHASES[2:])
def test_a_slower_phase_is_found_with_its_size(phase: str) -> None:
    # given B needs 8 ms longer in one phase of a step of about 105 ms
    comparison = pair(QUIET, MadeUp(name="b", seed=2, phases=slowed(phase, 8_000)))
    # then
    step = quantity(comparison, "wall_us")
    assert (comparison.outcome, step.outcome, comparison.per, comparison.basis) == ("worse", "worse", "step", "own")
    assert step.typical is not None
    assert step.typical.low < 8_000 < step.typical.high
    worse = [item.name for item in comparison.quantities if item.role == "part" and item.outcome == "worse"]
    assert worse == [f"own_{phase}_us"]
    assert "B is slower than A" in comparison.summary
    assert PARTS[f"own_{phase}_us"].label in comparison.summary
    assert step.superiority is not None
    assert step.superiority > 0.9
    assert step.cliffs_delta == pytest.approx(2 * step.superiority - 1)


def test_the_imposed_wait_of_a_rank_is_that_of_the_verdict(synthetic: Synthetic) -> None:
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


def test_what_became_faster_is_better() -> None:
    comparison = pair(MadeUp(seed=2, phases=slowed("forward", 8_000)), QUIET)
    assert comparison.outcome == "better"
    assert "B is faster than A" in comparison.summary
    assert comparison.throughput[0].relative > 0.05


def test_parts_add_up_to_the_change_of_the_step() -> None:
    comparison = pair(QUIET, MadeUp(seed=3, phases=slowed("data", 9_000), transfer_us=6_000))
    step = quantity(comparison, "wall_us")
    parts = [part for part in comparison.quantities if part.role == "part"]
    for side in ("a", "b", "difference"):
        assert sum(getattr(part, side) for part in parts) == pytest.approx(getattr(step, side))
    assert step.of_step == pytest.approx(sum(part.of_step or 0.0 for part in parts))
    assert quantity(comparison, "communication_us").difference == pytest.approx(2_000)


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.floats(-4_000, 20_000))
def test_exchanging_the_runs_turns_every_sign(seed: int, by_us: float) -> None:
    a, b = MadeUp(seed=seed, steps=80), MadeUp(seed=seed + 1, steps=95, phases=slowed("forward", by_us))
    # The smallest difference that matters is a share of A's step: an outcome at that limit may depend on which run is A.
    forward, back = pair(a, b, min_change=1e-9), pair(b, a, min_change=1e-9)
    opposite = {"worse": "better", "better": "worse"}
    assert back.outcome == opposite.get(forward.outcome, forward.outcome)
    for item, other in zip(forward.quantities, back.quantities, strict=True):
        assert item.name == other.name
        assert item.difference == pytest.approx(-(other.difference or 0.0), abs=1e-6)
        if item.typical is not None and other.typical is not None:
            assert item.typical.p_value == pytest.approx(other.typical.p_value)


def test_a_slower_rank_is_named_with_host_and_phase_and_nobody_else() -> None:
    comparison = pair(QUIET, MadeUp(seed=4, late={2: ("optimizer", 15_000)}))
    assert [row.rank for row in comparison.ranks if row.outcome in ("worse", "better")] == [2]
    row = comparison.ranks[2]
    assert (row.host_b, row.phase) == ("n1", "optimizer")
    assert row.excess_b_us - row.excess_a_us == pytest.approx(15_000, rel=0.1)
    assert "Rank 2 on n1 became slower than its peers" in comparison.summary
    assert "in optimizer" in comparison.summary
    assert quantity(comparison, "waiting_us").outcome == "worse"
    assert comparison.slower_hosts == []


def test_a_host_all_of_whose_ranks_became_slower_is_named() -> None:
    late = dict.fromkeys((4, 5), ("forward", 15000.0))
    comparison = pair(MadeUp(seed=5, ranks=8), MadeUp(seed=6, ranks=8, late=late))
    assert comparison.slower_hosts == ["n2"]
    assert "All ranks of host n2 became slower" in comparison.summary


def test_a_rank_that_moved_to_another_host_says_so() -> None:
    comparison = pair(QUIET, MadeUp(seed=4, late={1: ("data", 15_000)}, hosts={1: "n7"}))
    assert "Rank 1 on n7 (before on n0) became slower" in comparison.summary
    assert any(text.startswith("hosts: ") for text in comparison.differs)


def test_ranks_that_all_became_slower_stand_out_in_nothing() -> None:
    comparison = pair(QUIET, MadeUp(seed=7, phases=slowed("forward", 20_000)))
    assert {row.outcome for row in comparison.ranks} <= {"same", "undecided"}


def test_a_real_change_that_is_tiny_is_the_same() -> None:
    calm: dict[str, Any] = {"noise": 0.002, "common": 0.001, "phi": 0.0, "steps": 400}
    comparison = pair(MadeUp(seed=1, **calm), MadeUp(seed=2, phases=slowed("forward", 400), **calm))
    step = quantity(comparison, "wall_us")
    assert step.typical is not None
    assert step.typical.real
    assert comparison.outcome == "same"
    assert "less than the 1% that matters" in comparison.summary
    # and a difference that matters with a smaller limit
    limit = pair(MadeUp(seed=1, **calm), MadeUp(seed=2, phases=slowed("forward", 400), **calm), min_change=0.002)
    assert limit.outcome == "worse"


def test_noise_that_hides_a_change_is_undecided_with_the_detectable_change() -> None:
    comparison = pair(MadeUp(seed=1, common=0.2), MadeUp(seed=2, common=0.2, phases=slowed("forward", 2_000)))
    step = quantity(comparison, "wall_us")
    assert comparison.outcome == "undecided"
    assert step.typical is not None
    assert step.typical.detectable > 2_000
    assert "that the noise lets through" in comparison.summary
    assert "would most likely have been seen" in comparison.summary


def test_few_steps_are_not_enough_data_and_the_numbers_are_still_there() -> None:
    comparison = pair(QUIET, MadeUp(seed=2, steps=20))
    step = quantity(comparison, "wall_us")
    assert (comparison.outcome, step.typical, step.average) == ("insufficient_data", None, None)
    assert step.difference is not None
    assert "16 usable steps on one side; 30 are needed" in comparison.summary


def test_noise_that_lasts_long_leaves_a_small_change_undecided() -> None:
    long: dict[str, Any] = {"phi": 0.98, "common": 0.2, "steps": 100}
    assert pair(MadeUp(seed=1, **long), MadeUp(seed=2, phases=slowed("forward", 2_000), **long)).outcome == "undecided"


def test_another_batch_size_is_compared_per_sample() -> None:
    # given B does twice the work in twice the time
    double = {phase: 2 * us for phase, us in MadeUp().phases.items()}
    comparison = pair(QUIET, MadeUp(seed=2, samples=16, phases=double, transfer_us=8_000))
    step = quantity(comparison, "wall_us")
    # then nothing became slower
    assert (comparison.per, comparison.outcome in ("same", "undecided")) == ("sample", True)
    assert step.a == pytest.approx(step.b, rel=0.03)
    assert comparison.throughput[0].relative == pytest.approx(0, abs=0.03)
    assert {row.outcome for row in comparison.ranks} <= {"same", "undecided"}
    assert len(comparison.ranks) == 4


def test_a_slower_rank_is_named_per_sample_where_the_batch_is_another() -> None:
    # given steps of twice the work, and a rank that takes 40 ms longer in those
    double = {phase: 2 * us for phase, us in MadeUp().phases.items()}
    comparison = pair(QUIET, MadeUp(seed=2, samples=16, phases=double, late={3: ("data", 40_000)}))
    assert [(row.rank, row.phase) for row in comparison.ranks if row.outcome == "worse"] == [(3, "data")]
    assert comparison.ranks[3].excess_b_us - comparison.ranks[3].excess_a_us == pytest.approx(40_000 / (4 * 16), rel=0.15)
    assert "per sample, in data" in comparison.summary


def test_tokens_count_before_samples() -> None:
    comparison = pair(MadeUp(seed=1, tokens=8 * 512), MadeUp(seed=2, tokens=8 * 1024))
    assert comparison.per == "token"
    assert comparison.outcome == "better"
    assert [rate.unit for rate in comparison.throughput] == ["samples", "tokens"]
    assert comparison.throughput[1].relative == pytest.approx(1.0, abs=0.05)


def test_samples_of_ranks_that_share_them_count_once() -> None:
    tensor_parallel = {rank: {"dp": rank // 2, "tp": rank % 2} for rank in range(4)}
    assert comparable_steps(QUIET.recording(), "A").work["samples"] == pytest.approx(32)
    assert comparable_steps(replace(QUIET, coordinates=tensor_parallel).recording(), "A").work["samples"] == pytest.approx(16)


def test_without_a_usable_step_on_one_side_nothing_is_said_of_it(synthetic: Synthetic) -> None:
    # Given a run of which only warm-up steps lie before the step that divides it
    comparison = compare([synthetic(steps=60).write()], at=3).comparisons[0]
    step = quantity(comparison, "wall_us")
    assert (comparison.outcome, step.a, step.difference) == ("insufficient_data", None, None)
    assert not [item for item in comparison.quantities if item.role == "part"]


def test_without_signals_the_walls_of_the_phases_are_compared(synthetic: Synthetic) -> None:
    a = synthetic("a", seed=1, steps=80, signals=False).write()
    b = synthetic("b", seed=2, steps=80, signals=False, phases={"forward": 50_000, "backward": 50_000}).write()
    comparison = compare([a, b]).comparisons[0]
    assert (comparison.basis, comparison.ranks) == ("wall", [])
    parts = [part for part in comparison.quantities if part.role == "part"]
    # data, optimizer and between_steps are recorded separately on one side only, so their time is in the rest of both
    assert {part.name for part in parts} == {"forward_us", "backward_us", "rest"}
    assert sum(part.difference or 0.0 for part in parts) == pytest.approx(quantity(comparison, "wall_us").difference)


def test_before_and_after_a_step(synthetic: Synthetic) -> None:
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
def test_a_step_that_divides_nothing_is_an_error(synthetic: Synthetic, at: int) -> None:
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
def test_windows_tell_exposed_communication_and_overlap(
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


def test_memory_and_the_recorders_cost_are_compared_and_not_judged(synthetic: Synthetic) -> None:
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


def test_a_copy_of_a_run_is_the_same_run(synthetic: Synthetic, tmp_path: Path) -> None:
    run = synthetic("a").write()
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(InputError, match="compared with itself"):
        compare([run, tmp_path / "link"])


def test_what_cannot_be_compared_is_one_line(synthetic: Synthetic, tmp_path: Path) -> None:
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


def test_records_without_sense_are_left_out(synthetic: Synthetic) -> None:
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


def test_what_else_differs_is_said(synthetic: Synthetic) -> None:
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


def test_a_rank_without_records_is_said_and_the_rest_is_compared(synthetic: Synthetic) -> None:
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


def test_rank_infos_that_are_missing_are_no_obstacle(synthetic: Synthetic) -> None:
    a, b = synthetic("a", seed=1, steps=80).write(), synthetic("b", seed=2, steps=80).write()
    for file in [*a.glob("attempts/*/ranks/*/rank.json"), *b.glob("attempts/*/attempt.json")]:
        file.unlink()
    comparison = compare([a, b]).comparisons[0]
    assert comparison.outcome in ("same", "undecided")
    assert {row.host_a for row in comparison.ranks} == {None}


@pytest.mark.parametrize(("every", "basis"), [(8, "own"), (0, "wall")])
def test_own_times_of_spread_steps_stand_for_all_steps(synthetic: Synthetic, every: int, basis: str) -> None:
    def known(_rank: int, step: int) -> dict[str, Any]:
        has = step % every == 0 if every else step < 20
        return {} if has else {"blocked_us": None}

    a, b = (synthetic(name, seed=seed, steps=160, fields=known).write() for seed, name in enumerate("ab"))
    assert compare([a, b]).comparisons[0].basis == basis
