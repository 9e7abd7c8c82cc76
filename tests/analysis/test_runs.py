"""Verdicts on synthetic runs with known ground truth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.step_files import add_damaged, load, save, steps_file

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, CollectiveRecord, RankInfo, StepBreakdown
from rankscope.runs.small_files import create_attempt, write_record
from rankscope.runs.step_columns import PROFILED

Synthetic = Callable[..., Any]
Plan = Callable[[int, int], dict[str, Any] | None]


def always(rank: int, **extra: Any) -> Plan:
    return lambda item, _step: extra if item == rank else None


def result(run: Any) -> Analysis:
    return analyze([run.write()])


@pytest.mark.parametrize(
    ("extra", "cause", "explained_by", "phase"),
    [
        ({"phase": "data", "us": 60_000}, "input", None, "data"),
        ({"phase": "data", "us": 60_000, "cpu": True}, "input", None, "data"),
        ({"phase": "forward", "us": 60_000}, "host", None, "forward"),
        ({"phase": "backward", "us": 60_000}, "host", None, "backward"),
        ({"phase": "optimizer", "us": 60_000}, "host", None, "optimizer"),
        ({"phase": "forward", "us": 60_000, "cpu": True}, "compute", None, "forward"),
        ({"phase": "forward", "us": 60_000, "run_queue": True}, "compute", "cpu_contention", "forward"),
        ({"phase": "backward", "us": 60_000, "cpu": True, "elements": 2.0}, "imbalance", None, "backward"),
        ({"phase": "backward", "us": 60_000, "elements": 2.0}, "host", None, "backward"),
        ({"phase": "forward", "us": 60_000, "cpu": True, "gc": True}, "gc", None, "forward"),
        ({"phase": "between_steps", "us": 60_000, "tags": ["checkpoint"]}, "checkpoint", None, "between_steps"),
        ({"phase": "between_steps", "us": 60_000, "tags": ["eval"]}, "evaluation", None, "between_steps"),
    ],
)
def test_a_planted_cause_is_found(
    synthetic: Synthetic, extra: dict[str, Any], cause: str, explained_by: str | None, phase: str
) -> None:
    analysis = result(synthetic(plan=always(2, **extra)))
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.pattern) == ("straggler", 2, [2], "fixed")
    assert (verdict.cause, verdict.explained_by, verdict.phase) == (cause, explained_by, phase)
    assert verdict.evidence_source == "steps"
    assert verdict.confidence is not None
    assert verdict.confidence > 0.9
    assert "Rank 2 on host n1" in verdict.summary
    assert verdict.next
    assert analysis.findings[0].summary == verdict.summary
    assert {evidence.name for evidence in analysis.findings[0].evidence} >= {"imposed_wait", "saved", "p_value"}


@pytest.mark.parametrize(
    ("loaded", "given", "cause", "explained_by"),
    [
        (1.0, 3.0, "imbalance", "enlarged_batches"),
        (3.0, 3.0, "imbalance", None),
        (3.0, 1.0, "compute", None),  # longer samples that the script cuts after the loader
        (3.0, None, "imbalance", None),
    ],
)
def test_work_counts_where_it_enters_the_model_if_that_is_known(
    synthetic: Synthetic, loaded: float, given: float | None, cause: str, explained_by: str | None
) -> None:
    def fields(rank: int, step: int) -> dict[str, Any]:
        # Unknown in the first step of FSDP
        return {"model_elements": None if given is None or not step else round(1000 * (given if rank == 2 else 1.0))}

    analysis = result(synthetic(plan=always(2, us=60_000, phase="forward", cpu=True, elements=loaded), fields=fields))
    verdict = analysis.verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (2, cause, explained_by), verdict.summary
    by_key = {row.name: row.value for row in analysis.findings[0].evidence if row.name.endswith("work_excess")}
    value = {"work_excess": loaded - 1} if given is None else {"work_excess": given - 1, "loaded_work_excess": loaded - 1}
    assert by_key == pytest.approx(value, abs=0.01)
    assert ("after the loader" in verdict.summary) == (explained_by is not None)
    assert any("after the loader" in action for action in verdict.next) == (explained_by is not None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_with_nothing_planted_nobody_is_accused(synthetic: Synthetic, noise: float, seed: int) -> None:
    verdict = result(synthetic(noise=noise, seed=seed)).verdict
    assert verdict.rank is None
    assert (verdict.kind, verdict.pattern) == ("straggler", "rotating") or verdict.kind in {
        "balanced",
        "compute_bound",
        "communication_bound",
    }
    assert verdict.rank is None
    assert (verdict.gpu_hours_lost is None) == (verdict.kind != "straggler")


@pytest.mark.parametrize("seed", range(6))
def test_a_fault_is_found_in_heavy_noise(synthetic: Synthetic, seed: int) -> None:
    verdict = result(synthetic(noise=0.3, seed=seed, plan=always(1, phase="backward", us=60_000))).verdict
    assert (verdict.kind, verdict.rank, verdict.cause, verdict.phase) == ("straggler", 1, "host", "backward")


def test_a_small_but_certain_lag_accuses_nobody(synthetic: Synthetic) -> None:
    assert result(synthetic(noise=0.005, plan=always(1, us=2_500))).verdict.kind != "straggler"


@pytest.mark.parametrize(
    ("rank", "steps", "us"), [(3, {20}, 5_000_000), (0, {0, 1, 2, 3}, 900_000)], ids=["one terrible step", "slow first steps"]
)
def test_few_slow_steps_accuse_nobody(synthetic: Synthetic, rank: int, steps: set[int], us: float) -> None:
    verdict = result(synthetic(plan=lambda item, step: {"us": us} if item == rank and step in steps else None)).verdict
    assert verdict.kind != "straggler"


def test_a_rank_that_is_slow_now_and_then_is_intermittent(synthetic: Synthetic) -> None:
    plan: Plan = lambda rank, step: {"us": 200_000} if rank == 3 and step % 4 == 0 else None  # noqa: E731
    verdict = result(synthetic(steps=80, plan=plan)).verdict
    assert (verdict.kind, verdict.rank, verdict.pattern, verdict.cause) == ("straggler", 3, "intermittent", "host")
    assert "intermittently" in verdict.summary


@pytest.mark.parametrize(
    ("tags", "phase", "cause", "words"),
    [
        (["eval"], "between_steps", "evaluation", "evaluation takes longer than"),
        (["checkpoint"], "between_steps", "checkpoint", "checkpoints take longer than"),
        (["checkpoint", "eval"], "between_steps", "checkpoint", "checkpoint or evaluation"),
        (["eval"], "data", "input", ""),
        (["eval"], "backward", "host", ""),
        (["validated"], "between_steps", "host", ""),
    ],
)
def test_an_activity_of_all_ranks_that_takes_one_longer_is_the_cause(
    synthetic: Synthetic, tags: list[str], phase: str, cause: str, words: str
) -> None:
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        return {"phase": phase, "us": 400_000 if rank == 1 else 100_000, "tags": tags} if step % 10 == 0 else None

    verdict = result(synthetic(steps=200, plan=plan)).verdict
    assert (verdict.kind, verdict.rank, verdict.pattern, verdict.cause) == ("straggler", 1, "intermittent", cause)
    assert words in verdict.summary


def test_a_rank_that_evaluates_alone_now_and_then_is_said_to(synthetic: Synthetic) -> None:
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        return {"phase": "between_steps", "us": 300_000, "tags": ["eval"]} if rank == 2 and step % 10 == 0 else None

    verdict = result(synthetic(steps=200, plan=plan)).verdict
    assert (verdict.rank, verdict.pattern, verdict.cause) == (2, "intermittent", "evaluation")
    assert "it alone evaluates" in verdict.summary


def test_tags_of_all_steps_or_of_few_slow_ones_are_no_cause(synthetic: Synthetic) -> None:
    # Given a rank that is slow in every fourth step, tags on all steps, and others on every twentieth step
    def plan(rank: int, step: int) -> dict[str, Any]:
        return {
            "us": 200_000 if rank == 3 and step % 4 == 0 else 0,
            "tags": ["eval", *(["checkpoint"] if step % 20 == 0 else [])],
        }

    assert result(synthetic(steps=80, plan=plan)).verdict.cause == "host"


def test_a_slowness_that_moves_is_rotating_and_names_no_single_rank(synthetic: Synthetic) -> None:
    analysis = result(synthetic(plan=lambda rank, step: {"us": 90_000} if step % 4 == rank else None))
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.pattern, verdict.ranks) == ("straggler", None, "rotating", [0, 1, 2, 3])
    assert verdict.cause == "host"


def test_all_slow_ranks_of_a_host_are_named(synthetic: Synthetic) -> None:
    run = synthetic(ranks=8, plan=lambda rank, _step: {"us": 60_000 + 1000 * rank} if rank in (4, 5) else None)
    verdict = result(run).verdict
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.pattern) == ("straggler", 5, [4, 5], "fixed")
    assert verdict.slowdown is not None
    assert verdict.slowdown > 1.3


def test_slowdown_is_the_step_over_the_step_without_the_cause(synthetic: Synthetic) -> None:
    verdict = result(synthetic(noise=0.001, plan=always(2, us=52_000))).verdict
    assert verdict.slowdown == pytest.approx(156 / 104, rel=0.01)
    assert verdict.gpu_hours_lost == pytest.approx(0.052 * 40 * 4 / 3600, rel=0.02)


def test_the_recorded_price_is_used_unless_another_is_given(synthetic: Synthetic) -> None:
    run = synthetic(plan=always(2, us=60_000), price=2.5).write()
    recorded = analyze([run]).verdict
    given = analyze([run], price_per_gpu_hour=10, currency="CHF").verdict
    assert recorded.cost is not None
    assert given.cost is not None
    assert recorded.gpu_hours_lost is not None
    assert (recorded.cost.currency, given.cost.currency) == ("EUR", "CHF")
    assert recorded.cost.amount == pytest.approx(2.5 * recorded.gpu_hours_lost)
    assert given.cost.amount == pytest.approx(10 * recorded.gpu_hours_lost)


def test_ranks_on_cpus_lose_no_gpu_hours(synthetic: Synthetic) -> None:
    verdict = result(synthetic(plan=always(2, us=60_000), device_kind="cpu")).verdict
    assert (verdict.kind, verdict.gpu_hours_lost, verdict.cost) == ("straggler", None, None)


def test_a_run_with_simulated_gpu_readings_is_labelled(synthetic: Synthetic) -> None:
    analysis = result(synthetic(plan=always(2, us=60_000), simulated=True))
    assert analysis.source.simulated


def test_imposed_wait_from_step_records_is_the_culprits(synthetic: Synthetic) -> None:
    analysis = result(synthetic(noise=0.001, plan=always(2, us=60_000)))
    assert analysis.imposed_wait[0].rank == 2
    share = analysis.imposed_wait[0].share
    assert share is not None
    assert share > 0.99
    # 35 judged steps, three victims, 60 ms each.
    assert analysis.imposed_wait[0].imposed_us == pytest.approx(35 * 3 * 60_000, rel=0.02)
    assert analysis.collectives.matched == 0
    assert analysis.imposed_wait_source == "steps"


def test_limits_are_named_when_nobody_stands_out(synthetic: Synthetic) -> None:
    slow_input = {"data": 60_000.0, "forward": 20_000.0, "backward": 20_000.0}
    assert result(synthetic(phases=slow_input)).verdict.kind == "input_bound"


def test_communication_limits_when_blocked_time_is_not_waiting_for_anybody(synthetic: Synthetic) -> None:
    verdict = result(synthetic(noise=0.01, transfer_us=90_000)).verdict
    assert verdict.kind == "communication_bound"


def test_waiting_for_a_straggler_is_not_called_communication(synthetic: Synthetic) -> None:
    analysis = result(synthetic(noise=0.01, plan=always(2, us=200_000)))
    assert [finding.kind for finding in analysis.findings] == ["straggler"]


def test_one_rank_cannot_be_a_straggler(synthetic: Synthetic) -> None:
    analysis = result(synthetic(ranks=1, plan=always(0, us=60_000)))
    assert analysis.verdict.kind in {"balanced", "compute_bound"}
    assert "one rank" in analysis.verdict.summary
    assert analysis.imposed_wait == []


def test_no_step_yet_is_insufficient_data_and_says_so(synthetic: Synthetic) -> None:
    analysis = result(synthetic(steps=0))
    assert analysis.verdict.kind == "insufficient_data"
    assert "yet" in analysis.verdict.summary
    assert (analysis.source.coverage, analysis.source.steps) == (None, 0)


def test_too_few_steps_are_insufficient_data(synthetic: Synthetic) -> None:
    verdict = result(synthetic(steps=4, plan=always(2, us=60_000))).verdict
    assert verdict.kind == "insufficient_data"
    assert "4 steps recorded" in verdict.summary


def test_without_own_time_and_windows_the_verdict_says_what_is_missing(synthetic: Synthetic) -> None:
    analysis = result(synthetic(signals=False, plan=always(2, us=60_000)))
    assert analysis.verdict.kind == "insufficient_data"
    assert "own time" in analysis.verdict.summary
    assert all(row.blocked_us is None and row.own_us is None for row in analysis.ranks)


AddWindows = Callable[[Path, int, list[StepBreakdown], list[CollectiveRecord]], None]


def profiled(steps: Iterable[int], late_us: int | Callable[[int], int]) -> tuple[list[StepBreakdown], list[CollectiveRecord]]:
    """Return windows of one rank that is ``late_us`` late to the one collective of each step of 160 ms."""
    breakdowns, collectives = [], []
    for step in steps:
        late = late_us(step) if callable(late_us) else late_us
        start = 10**18 + step * 160_000_000
        breakdowns.append(
            StepBreakdown(
                step=step,
                start_unix_ns=start,
                device_kind="cuda",
                window_us=160_000,
                compute_us=90_000,
                communication_us=70_000 - late,
                overlap_us=0,
                exposed_communication_us=70_000 - late,
                memcpy_us=0,
                exposed_memcpy_us=0,
                idle_us=late,
                events=10,
            )
        )
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
def test_windows_decide_and_step_records_still_tell_the_cause(
    synthetic: Synthetic,
    add_windows: AddWindows,
    phase: str,
    cause: str,
) -> None:
    path = synthetic(signals=False, plan=always(2, us=60_000, phase=phase)).write()
    for rank in range(4):
        add_windows(path, rank, *profiled(range(20, 26), 60_000 if rank == 2 else 0))
    analysis = analyze([path])
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.evidence_source) == ("straggler", 2, "windows")
    assert (verdict.cause, verdict.phase) == (cause, phase)
    assert verdict.slowdown == pytest.approx(160 / 100)
    assert analysis.imposed_wait[0].imposed_us == pytest.approx(6 * 3 * 60_000)
    assert analysis.imposed_wait_source == "windows"
    assert analysis.ranks[2].window_us == 6 * 160_000
    assert (analysis.ranks[0].wait_us, analysis.ranks[2].wait_us) == (6 * 60_000, 0)


def test_a_killed_rank_is_named_and_lowers_coverage(synthetic: Synthetic) -> None:
    analysis = result(synthetic(lost_after={3: 25}, end_reasons={3: "killed"}, plan=always(2, us=60_000)))
    assert analysis.verdict.failure == "rank 3 killed before the end of training"
    assert analysis.source.coverage == pytest.approx((3 * 40 + 25) / 160)
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("straggler", 2)
    assert analysis.ranks[3].end_reason == "killed"


def test_a_rank_without_any_record_is_named(synthetic: Synthetic) -> None:
    analysis = result(synthetic(lost_after={1: 0}, plan=always(2, us=60_000)))
    assert "no records of rank 1" in analysis.source.warnings
    assert analysis.source.coverage == pytest.approx(0.75)
    assert [row.rank for row in analysis.ranks] == [0, 2, 3]
    assert analysis.verdict.rank == 2


def test_torn_and_damaged_records_are_counted_and_cost_nothing_else(synthetic: Synthetic) -> None:
    path = synthetic(plan=always(2, us=60_000)).write()
    file = steps_file(path, 1)
    add_damaged(file)
    with file.open("ab") as end:
        end.write(bytes(20))
    analysis = analyze([path])
    (warning,) = (item for item in analysis.source.warnings if "2 damaged lines skipped" in item)
    assert f"{file.relative_to(path)} (2, from byte " in warning
    assert analysis.verdict.rank == 2


def test_the_last_attempt_is_analysed(synthetic: Synthetic) -> None:
    path = synthetic(plan=always(2, us=60_000)).write()
    create_attempt(path, AttemptInfo(attempt=1, start_unix_ns=2 * 10**18, world_size=4))
    analysis = analyze([path])
    assert analysis.verdict.kind == "insufficient_data"
    assert any("attempt" in warning for warning in analysis.source.warnings)


def test_an_earlier_attempt_is_analysed_where_its_folder_is_named(synthetic: Synthetic) -> None:
    path = synthetic(plan=always(2, us=60_000), end_reasons=dict.fromkeys(range(4), None)).write()
    create_attempt(path, AttemptInfo(attempt=1, start_unix_ns=2 * 10**18, world_size=4))
    (warnings,) = [warning for warning in analyze([path]).source.warnings if "attempts" in warning]
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


def test_the_same_run_gets_the_same_answer(synthetic: Synthetic) -> None:
    path = synthetic(noise=0.3, plan=always(2, us=60_000)).write()
    assert analyze([path]) == analyze([path])


def test_the_result_is_the_published_json(synthetic: Synthetic) -> None:
    analysis = result(synthetic(plan=always(2, us=60_000)))
    text = msgspec.json.encode(analysis)
    assert msgspec.json.decode(text, type=Analysis) == analysis
    assert not re.search(rb"NaN|Infinity", text)


def test_what_the_recorder_lost_is_said(synthetic: Synthetic) -> None:
    # given a rank that had to drop records and leave out a window
    path = synthetic().write()
    file = rank_dir(path, 0, 1) / "rank.json"
    info = msgspec.json.decode(file.read_bytes(), type=RankInfo)
    write_record(file, msgspec.structs.replace(info, dropped_records=7, missed_windows=2))
    # then the analysis reports both
    warnings = " ".join(analyze([path]).source.warnings)
    assert "7 records were dropped" in warnings
    assert "2 profiler windows were left out" in warnings


def test_steps_that_cannot_tell_a_rank_from_chance_are_said_to_be_too_few(synthetic: Synthetic) -> None:
    # given two ranks, one of them plainly slow, with seven comparable steps
    verdict = result(synthetic(ranks=2, steps=8, plan=always(1, us=60_000))).verdict
    # then the result is how many steps are missing, not that no rank is slow
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "rank 1 made the others wait" in verdict.summary
    assert "in 7 of 7 steps after warm-up" in verdict.summary
    assert "at most 0.01 is needed" in verdict.summary
    assert "8 such steps, about 10 steps in all are needed" in verdict.summary
    assert verdict.steps_needed == 10


def test_slow_steps_too_few_to_exclude_chance_are_said_to_be_too_few(synthetic: Synthetic) -> None:
    # given two ranks, one of them slow in one step of ten, in a run of 60 steps
    plan: Plan = lambda rank, step: {"us": 500_000} if rank == 1 and step % 10 == 8 else None  # noqa: E731
    verdict = result(synthetic(ranks=2, steps=60, plan=plan)).verdict
    # then the result neither names a rank nor claims that no rank is slow
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "rank 1 made the others wait in 6 of 55 steps after warm-up" in verdict.summary
    assert "8 such steps" in verdict.summary


def test_two_slow_ranks_of_four_are_both_named_with_what_both_cost(synthetic: Synthetic) -> None:
    run = synthetic(plan=lambda rank, _step: {"us": 40_000} if rank in {0, 2} else None)
    verdict = result(run).verdict
    assert (verdict.kind, verdict.ranks, verdict.cause, verdict.phase) == ("straggler", [0, 2], "host", "forward")
    assert verdict.slowdown == pytest.approx(1.4, abs=0.08)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 10), (4, 8)])
def test_as_soon_as_chance_can_be_excluded_the_rank_is_named(synthetic: Synthetic, ranks: int, steps: int) -> None:
    run = synthetic(ranks=ranks, steps=steps, plan=always(1, us=60_000)).write()
    assert (analyze([run]).verdict.kind, analyze([run]).verdict.rank) == ("straggler", 1)


def test_few_steps_in_which_nobody_is_slow_are_not_called_too_few(synthetic: Synthetic) -> None:
    assert result(synthetic(ranks=2, steps=8, noise=0.005)).verdict.kind != "insufficient_data"


def test_windows_too_few_to_exclude_chance_ask_for_more(synthetic: Synthetic, add_windows: AddWindows) -> None:
    # given two ranks, of which rank 1 is late in five of six profiled steps and rank 0 in one
    path = synthetic(ranks=2, signals=False).write()
    add_windows(path, 0, *profiled(range(20, 26), lambda step: 40_000 if step == 22 else 0))
    add_windows(path, 1, *profiled(range(20, 26), lambda step: 0 if step == 22 else 60_000))
    verdict = analyze([path]).verdict
    assert verdict.kind == "insufficient_data"
    assert "rank 1" in verdict.summary
    assert "more profiled steps are needed" in verdict.summary


def test_windows_do_not_call_a_run_balanced_that_has_steps_of_one_rank(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(ranks=2).write()
    for rank in range(2):
        add_windows(path, rank, *profiled(range(20, 26), 0))
    steps_file(path, 1).write_bytes(b"")
    verdict = analyze([path]).verdict
    assert verdict.kind == "insufficient_data"
    assert "step records of 1 rank only, of a world of 2" in verdict.summary


def test_nobody_is_nobody_among_those_that_could_be_compared(synthetic: Synthetic) -> None:
    whole = result(synthetic()).verdict
    path = synthetic().path
    steps_file(path, 1).write_bytes(b"")
    part = analyze([path]).verdict
    assert "among" not in whole.summary
    assert "among the 3 of 4 ranks with records" in part.summary
    assert whole.confidence is not None
    assert part.confidence is not None
    assert part.confidence <= 0.75
    assert part.confidence < whole.confidence


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("phase", "words"), [("between_steps", "between the steps"), ("forward", "inside the step")])
def test_ranks_on_cpus_that_all_idle_are_host_bound(synthetic: Synthetic, ranks: int, phase: str, words: str) -> None:
    verdict = result(synthetic(ranks=ranks, device_kind="cpu", plan=lambda _rank, _step: {"phase": phase, "us": 400_000})).verdict
    assert (verdict.kind, verdict.cause) == ("host_bound", "host")
    assert verdict.phase == (phase if phase == "between_steps" else None)
    assert re.search(rf"[78]\d% of the step goes neither into .* compute nor .* but chiefly into .*{words}", verdict.summary)
    assert "py-spy" in verdict.next[0]


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({"phase": "forward", "us": 400_000, "cpu": True}, "compute_bound"),
        ({"phase": "data", "us": 400_000, "cpu": True}, "input_bound"),
        ({"phase": "data", "us": 400_000}, "input_bound"),
    ],
)
def test_ranks_on_cpus_that_compute_or_wait_for_data_are_not_host_bound(
    synthetic: Synthetic, extra: dict[str, Any], kind: str
) -> None:
    assert result(synthetic(device_kind="cpu", plan=lambda _rank, _step: extra)).verdict.kind == kind


def test_cpu_ranks_that_all_queue_are_host_bound_and_do_not_stall(synthetic: Synthetic) -> None:
    queue = {"phase": "forward", "us": 400_000, "run_queue": True}
    verdict = result(synthetic(device_kind="cpu", plan=lambda _rank, _step: queue)).verdict
    assert (verdict.kind, verdict.cause, verdict.explained_by) == ("host_bound", "host", "cpu_contention")
    assert "chiefly into queueing for CPUs" in verdict.summary
    assert "OMP_NUM_THREADS" in verdict.next[0]


def test_host_work_between_steps_says_nothing_about_the_device(synthetic: Synthetic) -> None:
    verdict = result(synthetic(plan=lambda _rank, _step: {"phase": "between_steps", "us": 400_000})).verdict
    assert verdict.kind == "balanced"


def test_a_straggler_of_two_ranks_is_not_a_second_finding_about_all(synthetic: Synthetic) -> None:
    analysis = result(synthetic(ranks=2, device_kind="cpu", plan=always(1, phase="between_steps", us=900_000)))
    assert [finding.kind for finding in analysis.findings] == ["straggler"]


def test_what_is_added_to_a_straggler_is_of_the_others(synthetic: Synthetic) -> None:
    # given one of two ranks that waits for its data for as long as everything else takes
    analysis = result(synthetic(ranks=2, device_kind="cpu", plan=always(1, phase="data", us=400_000)))
    # then its wait, half of that on average, is no second finding
    assert (analysis.verdict.kind, analysis.verdict.cause) == ("straggler", "input")
    assert "input_bound" not in [finding.kind for finding in analysis.findings]


def test_no_advice_gains_less_at_most_than_the_verdict_says_is_lost(synthetic: Synthetic) -> None:
    analysis = result(synthetic(device_kind="cpu", noise=0.05, plan=always(1, us=100_000)))
    assert analysis.waterfall is not None
    assert analysis.verdict.slowdown is not None
    lost = 1 - 1 / analysis.verdict.slowdown
    bound = next(row.gain_share_at_most for row in analysis.advice if "straggler." in (row.gain_formula or ""))
    assert analysis.verdict.saves is not None
    assert bound == pytest.approx(max(lost, analysis.verdict.saves[1]))
    waiting = next(part.share for part in analysis.waterfall.parts if part.name == "straggler_wait")
    assert waiting == pytest.approx(lost, abs=0.02)


def test_a_slowness_that_moves_blames_no_host(synthetic: Synthetic) -> None:
    analysis = result(synthetic(ranks=6, steps=120, plan=lambda rank, step: {"us": 200_000 * (step % 6 == rank)}))
    assert analysis.verdict.pattern == "rotating"
    assert analysis.verdict.next[0].startswith("Look for what the ranks share")
    assert not any("straggler" in (row.gain_formula or "") for row in analysis.advice)


def test_a_slow_stage_is_named_whatever_limits_the_step(synthetic: Synthetic) -> None:
    places = {rank: {"pp": rank} for rank in range(4)}
    run = synthetic(device_kind="cpu", coordinates=places, plan=always(2, us=60_000))
    analysis = result(run)
    assert analysis.pipeline is not None
    assert analysis.pipeline.slowest_stage == 2
    assert analysis.verdict.kind != "straggler"
    assert "Stage 2 is busy" in analysis.verdict.summary


def test_a_collective_in_an_absurd_step_is_left_out_and_counted(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(plan=always(2, us=60_000)).write()
    for rank in range(4):
        breakdowns, collectives = profiled([20], 0)
        breakdowns += [msgspec.structs.replace(row, step=10**30) for row in breakdowns]
        collectives += [msgspec.structs.replace(row, step=10**30) for row in collectives]
        add_windows(path, rank, breakdowns, collectives)
    analysis = analyze([path])
    assert analysis.verdict.rank == 2
    assert "8 records of ranks 0, 1, 2, 3 left out, whose times make no sense" in analysis.source.warnings


@pytest.mark.parametrize("extra", [{"cpu": True}, {}, {"phase": "between_steps"}])
def test_a_job_of_one_host_is_not_told_to_do_without_it(synthetic: Synthetic, extra: dict[str, Any]) -> None:
    def said(**where: Any) -> str:
        analysis = result(synthetic(device_kind="cpu", plan=always(2, us=60_000, **extra), **where))
        assert analysis.verdict.rank == 2
        return " ".join([*analysis.verdict.next, *(advice_item.action for advice_item in analysis.advice)])

    assert not re.search("without|DRAIN|replace", said(folder="one", rank_fields={"host": "alone"}))
    if extra.get("cpu"):
        assert re.search("without n1", said(folder="two"))


def test_ranks_that_share_a_gpu_are_said_to(synthetic: Synthetic) -> None:
    def shared(rank_fields: dict[str, Any]) -> list[str]:
        warnings = result(synthetic(gpus=True, rank_fields=rank_fields)).source.warnings
        return [warning for warning in warnings if "share" in warning]

    (output,) = shared({"gpu_uuid": "GPU-0"})
    assert output.startswith("ranks 0, 1, 2, 3 share one GPU, which runs their work in turns")
    assert shared({}) == []


def test_a_slow_rank_with_own_time_in_few_of_its_steps_is_named(synthetic: Synthetic) -> None:
    """On devices, a slow host has it less often: in short steps it costs too much of them."""

    def sparse(rank: int, step: int) -> dict[str, Any]:
        return {"blocked_us": None} if step % (8 if rank == 2 else 2) else {}

    run = synthetic(steps=160, fields=sparse, plan=always(2, phase="forward", us=60_000))
    verdict = result(run).verdict
    assert (verdict.kind, verdict.ranks, verdict.pattern) == ("straggler", [2], "fixed")
