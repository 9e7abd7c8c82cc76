"""Verdicts on runs of which a part is missing: few steps, lost records, ranks and attempts, own times that only windows have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from tests.analysis.breakdowns import breakdown
from tests.analysis.conftest import AddWindows, Plan, analyse, plan_for
from tests.step_files import add_damaged, load, save, steps_file

from rankscope.analysis.engine import analyze
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, CollectiveRecord, RankInfo, StepBreakdown
from rankscope.runs.small_files import create_attempt, write_record
from rankscope.runs.step_columns import PROFILED

Synthetic = Callable[..., Any]


def test_run_without_a_step_is_insufficient_data(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(steps=0))
    assert analysis.verdict.kind == "insufficient_data"
    assert "yet" in analysis.verdict.summary
    assert (analysis.source.coverage, analysis.source.steps) == (None, 0)


def test_too_few_steps_are_insufficient_data(synthetic: Synthetic) -> None:
    verdict = analyse(synthetic(steps=4, plan=plan_for(2, us=60_000))).verdict
    assert verdict.kind == "insufficient_data"
    assert "4 steps recorded" in verdict.summary


def test_verdict_without_own_time_and_windows_names_the_missing_data(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(signals=False, plan=plan_for(2, us=60_000)))
    assert analysis.verdict.kind == "insufficient_data"
    assert "own time" in analysis.verdict.summary
    assert all(row.blocked_us is None and row.own_us is None for row in analysis.ranks)


def late_windows(steps: Iterable[int], late_us: int | Callable[[int], int]) -> tuple[list[StepBreakdown], list[CollectiveRecord]]:
    """Return windows of one rank that is ``late_us`` late to the one collective of each step of 160 ms."""
    breakdowns, collectives = [], []
    for step in steps:
        late = late_us(step) if callable(late_us) else late_us
        start = 10**18 + step * 160_000_000
        breakdowns.append(breakdown(step, compute=90_000, exposed=70_000 - late, idle=late, start_unix_ns=start))
        arrive = start + (90_000 + late) * 1000
        collectives.append(
            CollectiveRecord(
                step=step,
                group="0",
                index=0,
                op="all_reduce",
                enqueue_unix_ns=arrive - 1000,
                start_unix_ns=arrive,
                end_unix_ns=start + 160_000_000,
                stream=9,
            )
        )
    return breakdowns, collectives


@pytest.mark.parametrize(("phase", "cause"), [("forward", "host"), ("data", "input")])
def test_windows_decide_the_verdict_and_step_records_the_cause(
    synthetic: Synthetic,
    add_windows: AddWindows,
    phase: str,
    cause: str,
) -> None:
    path = synthetic(signals=False, plan=plan_for(2, us=60_000, phase=phase)).write()
    for rank in range(4):
        add_windows(path, rank, *late_windows(range(20, 26), 60_000 if rank == 2 else 0))
    analysis = analyze([path])
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.evidence_source) == ("straggler", 2, "windows")
    assert (verdict.cause, verdict.phase) == (cause, phase)
    assert verdict.slowdown == pytest.approx(160 / 100)
    assert analysis.imposed_wait[0].imposed_us == pytest.approx(6 * 3 * 60_000)
    assert analysis.imposed_wait_source == "windows"
    assert analysis.ranks[2].window_us == 6 * 160_000
    assert (analysis.ranks[0].wait_us, analysis.ranks[2].wait_us) == (6 * 60_000, 0)


def test_killed_rank_is_named_and_lowers_coverage(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(lost_after={3: 25}, end_reasons={3: "killed"}, plan=plan_for(2, us=60_000)))
    assert analysis.verdict.failure == "rank 3 killed before the end of training"
    assert analysis.source.coverage == pytest.approx((3 * 40 + 25) / 160)
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("straggler", 2)
    assert analysis.ranks[3].end_reason == "killed"


def test_rank_without_any_record_is_named(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(lost_after={1: 0}, plan=plan_for(2, us=60_000)))
    assert "no records of rank 1" in analysis.source.warnings
    assert analysis.source.coverage == pytest.approx(0.75)
    assert [row.rank for row in analysis.ranks] == [0, 2, 3]
    assert analysis.verdict.rank == 2


def test_damaged_records_are_counted_and_leave_the_others(synthetic: Synthetic) -> None:
    path = synthetic(plan=plan_for(2, us=60_000)).write()
    file = steps_file(path, 1)
    add_damaged(file)
    with file.open("ab") as end:
        end.write(bytes(20))
    analysis = analyze([path])
    (warning,) = (item for item in analysis.source.warnings if "2 damaged lines skipped" in item)
    assert f"{file.relative_to(path)} (2, from byte " in warning
    assert analysis.verdict.rank == 2


def test_last_attempt_is_analysed_unless_another_is_given(synthetic: Synthetic) -> None:
    path = synthetic(plan=plan_for(2, us=60_000), end_reasons=dict.fromkeys(range(4), None)).write()
    create_attempt(path, AttemptInfo(attempt=1, start_unix_ns=2 * 10**18, world_size=4))
    last = analyze([path])
    assert last.verdict.kind == "insufficient_data"
    (warnings,) = [warning for warning in last.source.warnings if "attempts" in warning]
    assert warnings.endswith(f"name its folder, such as {path}/attempts/000")
    analysis = analyze([path / "attempts" / "000"])
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("straggler", 2)
    assert "one of 2 attempts (number 0) is analysed" in analysis.source.warnings
    # A newer attempt exists, so silence of this one is no problem
    assert not any("no rank has finished a step" in warning for warning in analysis.source.warnings)
    with pytest.raises(InputError, match="007: no such attempt of the run; there are 0, 1"):
        analyze([path / "attempts" / "007"])


def test_profiled_steps_do_not_count_against_a_rank(synthetic: Synthetic) -> None:
    path = synthetic(noise=0.01).write()
    file = steps_file(path, 1)
    rows = load(file)
    rows["flags"][10:34] = PROFILED
    rows["wall_us"][10:34] += 500_000
    save(file, rows)
    assert analyze([path]).verdict.kind != "straggler"


def test_records_lost_by_the_recorder_are_reported(synthetic: Synthetic) -> None:
    # given a rank that had to drop records and leave out a window
    path = synthetic().write()
    file = rank_dir(path, 0, 1) / "rank.json"
    info = msgspec.json.decode(file.read_bytes(), type=RankInfo)
    write_record(file, msgspec.structs.replace(info, dropped_records=7, missed_windows=2))
    # then the analysis reports both
    warnings = " ".join(analyze([path]).source.warnings)
    assert "7 records were dropped" in warnings
    assert "2 profiler windows were left out" in warnings


def test_too_few_steps_to_exclude_chance_are_reported_with_the_need(synthetic: Synthetic) -> None:
    # given two ranks, one of them plainly slow, with seven comparable steps
    verdict = analyse(synthetic(ranks=2, steps=8, plan=plan_for(1, us=60_000))).verdict
    # then the result is how many steps are missing, not that no rank is slow
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "rank 1 made the others wait" in verdict.summary
    assert "in 7 of 7 steps after warm-up" in verdict.summary
    assert "at most 0.01 is needed" in verdict.summary
    assert "8 such steps, about 10 steps in all are needed" in verdict.summary
    assert verdict.steps_needed == 10


def test_too_few_slow_steps_to_exclude_chance_are_reported(synthetic: Synthetic) -> None:
    # given two ranks, one of them slow in one step of ten, in a run of 60 steps
    plan: Plan = lambda rank, step: {"us": 500_000} if rank == 1 and step % 10 == 8 else None  # noqa: E731
    verdict = analyse(synthetic(ranks=2, steps=60, plan=plan)).verdict
    # then the result neither names a rank nor claims that no rank is slow
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "rank 1 made the others wait in 6 of 55 steps after warm-up" in verdict.summary
    assert "8 such steps" in verdict.summary


@pytest.mark.parametrize(("ranks", "steps"), [(2, 10), (4, 8)])
def test_rank_is_named_as_soon_as_chance_can_be_excluded(synthetic: Synthetic, ranks: int, steps: int) -> None:
    run = synthetic(ranks=ranks, steps=steps, plan=plan_for(1, us=60_000)).write()
    assert (analyze([run]).verdict.kind, analyze([run]).verdict.rank) == ("straggler", 1)


def test_few_steps_without_a_slow_rank_are_sufficient_data(synthetic: Synthetic) -> None:
    assert analyse(synthetic(ranks=2, steps=8, noise=0.005)).verdict.kind != "insufficient_data"


def test_too_few_windows_to_exclude_chance_need_more(synthetic: Synthetic, add_windows: AddWindows) -> None:
    # given two ranks, of which rank 1 is late in five of six profiled steps and rank 0 in one
    path = synthetic(ranks=2, signals=False).write()
    add_windows(path, 0, *late_windows(range(20, 26), lambda step: 40_000 if step == 22 else 0))
    add_windows(path, 1, *late_windows(range(20, 26), lambda step: 0 if step == 22 else 60_000))
    verdict = analyze([path]).verdict
    assert verdict.kind == "insufficient_data"
    assert "rank 1" in verdict.summary
    assert "more profiled steps are needed" in verdict.summary


def test_windows_do_not_balance_a_run_with_steps_of_one_rank(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(ranks=2).write()
    for rank in range(2):
        add_windows(path, rank, *late_windows(range(20, 26), 0))
    steps_file(path, 1).write_bytes(b"")
    verdict = analyze([path]).verdict
    assert verdict.kind == "insufficient_data"
    assert "step records of 1 rank only, of a world of 2" in verdict.summary


def test_no_rank_verdict_names_the_number_of_ranks_with_records(synthetic: Synthetic) -> None:
    whole = analyse(synthetic()).verdict
    path = synthetic().path
    steps_file(path, 1).write_bytes(b"")
    part = analyze([path]).verdict
    assert "among" not in whole.summary
    assert "among the 3 of 4 ranks with records" in part.summary
    assert whole.confidence is not None
    assert part.confidence is not None
    assert part.confidence <= 0.75
    assert part.confidence < whole.confidence


def test_collective_in_an_absurd_step_is_left_out_and_counted(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(plan=plan_for(2, us=60_000)).write()
    for rank in range(4):
        breakdowns, collectives = late_windows([20], 0)
        breakdowns += [msgspec.structs.replace(row, step=10**30) for row in breakdowns]
        collectives += [msgspec.structs.replace(row, step=10**30) for row in collectives]
        add_windows(path, rank, breakdowns, collectives)
    analysis = analyze([path])
    assert analysis.verdict.rank == 2
    assert "8 records of ranks 0, 1, 2, 3 left out, whose times make no sense" in analysis.source.warnings


def test_slow_rank_with_own_time_in_few_steps_is_named(synthetic: Synthetic) -> None:
    """On devices, a slow host has it less often: in short steps it costs too much of them."""

    def sparse(rank: int, step: int) -> dict[str, Any]:
        return {"blocked_us": None} if step % (8 if rank == 2 else 2) else {}

    run = synthetic(steps=160, fields=sparse, plan=plan_for(2, phase="forward", us=60_000))
    verdict = analyse(run).verdict
    assert (verdict.kind, verdict.ranks, verdict.pattern) == ("straggler", [2], "fixed")
