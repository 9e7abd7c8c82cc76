"""Verdicts on synthetic runs with known ground truth."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import mean
from typing import Any

import msgspec
import pytest
from tests.analysis.conftest import analyse, plan_for

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis

Synthetic = Callable[..., Any]


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
def test_planted_cause_is_found(
    synthetic: Synthetic, extra: dict[str, Any], cause: str, explained_by: str | None, phase: str
) -> None:
    analysis = analyse(synthetic(plan=plan_for(2, **extra)))
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
def test_work_is_measured_at_the_model_input_if_recorded(
    synthetic: Synthetic, loaded: float, given: float | None, cause: str, explained_by: str | None
) -> None:
    def fields(rank: int, step: int) -> dict[str, Any]:
        # Unknown in the first step of FSDP
        return {"model_elements": None if given is None or not step else round(1000 * (given if rank == 2 else 1.0))}

    analysis = analyse(synthetic(plan=plan_for(2, us=60_000, phase="forward", cpu=True, elements=loaded), fields=fields))
    verdict = analysis.verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (2, cause, explained_by), verdict.summary
    by_key = {row.name: row.value for row in analysis.findings[0].evidence if row.name.endswith("work_excess")}
    value = {"work_excess": loaded - 1} if given is None else {"work_excess": given - 1, "loaded_work_excess": loaded - 1}
    assert by_key == pytest.approx(value, abs=0.01)
    assert ("after the loader" in verdict.summary) == (explained_by is not None)
    assert any("after the loader" in action for action in verdict.next) == (explained_by is not None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_run_without_a_fault_accuses_no_rank(synthetic: Synthetic, noise: float, seed: int) -> None:
    verdict = analyse(synthetic(noise=noise, seed=seed)).verdict
    assert verdict.rank is None
    assert (verdict.kind, verdict.pattern) == ("straggler", "rotating") or verdict.kind in {
        "balanced",
        "compute_bound",
        "communication_bound",
    }
    assert verdict.rank is None
    assert (verdict.gpu_hours_lost is None) == (verdict.kind != "straggler")


@pytest.mark.parametrize("seed", range(6))
def test_fault_is_found_in_heavy_noise(synthetic: Synthetic, seed: int) -> None:
    verdict = analyse(synthetic(noise=0.3, seed=seed, plan=plan_for(1, phase="backward", us=60_000))).verdict
    assert (verdict.kind, verdict.rank, verdict.cause, verdict.phase) == ("straggler", 1, "host", "backward")


def test_small_but_certain_lag_accuses_no_rank(synthetic: Synthetic) -> None:
    assert analyse(synthetic(noise=0.005, plan=plan_for(1, us=2_500))).verdict.kind != "straggler"


@pytest.mark.parametrize(
    ("rank", "steps", "us"), [(3, {20}, 5_000_000), (0, {0, 1, 2, 3}, 900_000)], ids=["one terrible step", "slow first steps"]
)
def test_few_slow_steps_accuse_no_rank(synthetic: Synthetic, rank: int, steps: set[int], us: float) -> None:
    verdict = analyse(synthetic(plan=lambda item, step: {"us": us} if item == rank and step in steps else None)).verdict
    assert verdict.kind != "straggler"


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
def test_activity_of_all_ranks_that_is_longer_on_one_is_the_cause(
    synthetic: Synthetic, tags: list[str], phase: str, cause: str, words: str
) -> None:
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        return {"phase": phase, "us": 400_000 if rank == 1 else 100_000, "tags": tags} if step % 10 == 0 else None

    verdict = analyse(synthetic(steps=200, plan=plan)).verdict
    assert (verdict.kind, verdict.rank, verdict.pattern, verdict.cause) == ("straggler", 1, "intermittent", cause)
    assert words in verdict.summary


def test_rank_that_alone_evaluates_is_named_intermittent(synthetic: Synthetic) -> None:
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        return {"phase": "between_steps", "us": 300_000, "tags": ["eval"]} if rank == 2 and step % 10 == 0 else None

    verdict = analyse(synthetic(steps=200, plan=plan)).verdict
    assert (verdict.rank, verdict.pattern, verdict.cause) == (2, "intermittent", "evaluation")
    assert "it alone evaluates" in verdict.summary


def test_tags_of_all_steps_or_of_few_slow_ones_are_no_cause(synthetic: Synthetic) -> None:
    # Given a rank that is slow in every fourth step, tags on all steps, and others on every twentieth step
    def plan(rank: int, step: int) -> dict[str, Any]:
        return {
            "us": 200_000 if rank == 3 and step % 4 == 0 else 0,
            "tags": ["eval", *(["checkpoint"] if step % 20 == 0 else [])],
        }

    assert analyse(synthetic(steps=80, plan=plan)).verdict.cause == "host"


def test_moving_slowness_is_rotating_and_names_no_single_rank(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(plan=lambda rank, step: {"us": 90_000} if step % 4 == rank else None))
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.pattern, verdict.ranks) == ("straggler", None, "rotating", [0, 1, 2, 3])
    assert verdict.cause == "host"
    assert verdict.next[0].startswith("Look for what the ranks share")
    assert not any("straggler" in (row.gain_formula or "") for row in analysis.advice)


@pytest.mark.parametrize(
    "options",
    [
        {"noise": 0.01, "plan": plan_for(2, us=200_000)},
        {"ranks": 2, "device_kind": "cpu", "plan": plan_for(1, phase="between_steps", us=900_000)},
        # Its wait for data, half of that on average, is as long as everything else.
        {"ranks": 2, "device_kind": "cpu", "plan": plan_for(1, phase="data", us=400_000)},
    ],
)
def test_cost_of_a_straggler_is_no_second_finding(synthetic: Synthetic, options: dict[str, Any]) -> None:
    assert [finding.kind for finding in analyse(synthetic(**options)).findings] == ["straggler"]


def test_all_slow_ranks_of_a_host_are_named(synthetic: Synthetic) -> None:
    run = synthetic(ranks=8, plan=lambda rank, _step: {"us": 60_000 + 1000 * rank} if rank in (4, 5) else None)
    verdict = analyse(run).verdict
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.pattern) == ("straggler", 5, [4, 5], "fixed")
    assert verdict.slowdown == pytest.approx(169 / 104, abs=0.08)


def test_waits_between_named_ranks_are_not_those_of_the_others(synthetic: Synthetic) -> None:
    """Ranks 0 and 2 are slow in every step, and take turns in being last."""

    def plan(rank: int, step: int) -> dict[str, int] | None:
        if rank not in (0, 2):
            return None
        return {"us": 100_000 if (rank == 0) == (step % 2 == 0) else 60_000}

    analysis = analyse(synthetic(steps=120, plan=plan, noise=0.01))
    assert sorted(analysis.verdict.ranks) == [0, 2]
    wait_us = next(row.value for row in analysis.findings[0].evidence if row.name == "imposed_wait")
    blocked = [rank.blocked_us for rank in analysis.ranks if rank.rank in (1, 3)]
    assert wait_us == pytest.approx(100_000, rel=0.05)
    assert wait_us <= mean(us for us in blocked if us is not None) * 1.01
    assert "make the other 2 ranks wait" in analysis.verdict.summary
    assert f"for the worst of them, rank {analysis.verdict.rank}, " in analysis.verdict.summary


def test_slowdown_is_the_step_relative_to_the_step_without_the_cause(synthetic: Synthetic) -> None:
    verdict = analyse(synthetic(noise=0.001, plan=plan_for(2, us=52_000))).verdict
    assert verdict.slowdown == pytest.approx(156 / 104, rel=0.01)
    assert verdict.gpu_hours_lost == pytest.approx(0.052 * 40 * 4 / 3600, rel=0.02)


def test_the_recorded_price_is_used_unless_another_is_given(synthetic: Synthetic) -> None:
    run = synthetic(plan=plan_for(2, us=60_000), price=2.5).write()
    recorded = analyze([run]).verdict
    given = analyze([run], price_per_gpu_hour=10, currency="CHF").verdict
    assert recorded.cost is not None
    assert given.cost is not None
    assert recorded.gpu_hours_lost is not None
    assert (recorded.cost.currency, given.cost.currency) == ("EUR", "CHF")
    assert recorded.cost.amount == pytest.approx(2.5 * recorded.gpu_hours_lost)
    assert given.cost.amount == pytest.approx(10 * recorded.gpu_hours_lost)


def test_ranks_on_cpus_lose_no_gpu_hours(synthetic: Synthetic) -> None:
    verdict = analyse(synthetic(plan=plan_for(2, us=60_000), device_kind="cpu")).verdict
    assert (verdict.kind, verdict.gpu_hours_lost, verdict.cost) == ("straggler", None, None)


def test_a_run_with_simulated_gpu_readings_is_labelled(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(plan=plan_for(2, us=60_000), simulated=True))
    assert analysis.source.simulated


def test_imposed_wait_from_step_records_is_charged_to_the_culprit(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(noise=0.001, plan=plan_for(2, us=60_000)))
    assert analysis.imposed_wait[0].rank == 2
    share = analysis.imposed_wait[0].share
    assert share is not None
    assert share > 0.99
    # 35 judged steps, three victims, 60 ms each.
    assert analysis.imposed_wait[0].imposed_us == pytest.approx(35 * 3 * 60_000, rel=0.02)
    assert analysis.collectives.matched == 0
    assert analysis.imposed_wait_source == "steps"


def test_one_rank_cannot_be_a_straggler(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(ranks=1, plan=plan_for(0, us=60_000)))
    assert analysis.verdict.kind in {"balanced", "compute_bound"}
    assert "one rank" in analysis.verdict.summary
    assert analysis.imposed_wait == []


def test_result_is_deterministic(synthetic: Synthetic) -> None:
    path = synthetic(noise=0.3, plan=plan_for(2, us=60_000)).write()
    assert analyze([path]) == analyze([path])


def test_result_round_trips_through_the_published_json(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(plan=plan_for(2, us=60_000)))
    text = msgspec.json.encode(analysis)
    assert msgspec.json.decode(text, type=Analysis) == analysis
    assert not re.search(rb"NaN|Infinity", text)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("phase", "words"), [("between_steps", "between the steps"), ("forward", "inside the step")])
def test_idle_cpu_ranks_are_host_bound(synthetic: Synthetic, ranks: int, phase: str, words: str) -> None:
    verdict = analyse(
        synthetic(ranks=ranks, device_kind="cpu", plan=lambda _rank, _step: {"phase": phase, "us": 400_000})
    ).verdict
    assert (verdict.kind, verdict.cause) == ("host_bound", "host")
    assert verdict.phase == (phase if phase == "between_steps" else None)
    assert re.search(rf"[78]\d% of the step goes neither into .* compute nor .* but chiefly into .*{words}", verdict.summary)
    assert "py-spy" in verdict.next[0]


@pytest.mark.parametrize(
    ("kind", "extra", "options"),
    [
        ("compute_bound", {"phase": "forward", "us": 400_000, "cpu": True}, {"device_kind": "cpu"}),
        ("input_bound", {"phase": "data", "us": 400_000, "cpu": True}, {"device_kind": "cpu"}),
        ("input_bound", {"phase": "data", "us": 400_000}, {"device_kind": "cpu"}),
        ("input_bound", {}, {"phases": {"data": 60_000.0, "forward": 20_000.0, "backward": 20_000.0}}),
        ("communication_bound", {}, {"noise": 0.01, "transfer_us": 90_000}),
        # Steps alone do not show what the device does meanwhile.
        ("balanced", {"phase": "between_steps", "us": 400_000}, {}),
    ],
)
def test_limit_of_the_step_is_named_without_a_slow_rank(
    synthetic: Synthetic, kind: str, extra: dict[str, Any], options: dict[str, Any]
) -> None:
    assert analyse(synthetic(plan=lambda _rank, _step: extra, **options)).verdict.kind == kind


def test_queueing_cpu_ranks_are_host_bound_without_a_stall(synthetic: Synthetic) -> None:
    queue = {"phase": "forward", "us": 400_000, "run_queue": True}
    verdict = analyse(synthetic(device_kind="cpu", plan=lambda _rank, _step: queue)).verdict
    assert (verdict.kind, verdict.cause, verdict.explained_by) == ("host_bound", "host", "cpu_contention")
    assert "chiefly into queueing for CPUs" in verdict.summary
    assert "OMP_NUM_THREADS" in verdict.next[0]


def test_gain_of_advice_covers_the_loss_in_the_verdict(synthetic: Synthetic) -> None:
    analysis = analyse(synthetic(device_kind="cpu", noise=0.05, plan=plan_for(1, us=100_000)))
    assert analysis.waterfall is not None
    assert analysis.verdict.slowdown is not None
    lost = 1 - 1 / analysis.verdict.slowdown
    bound = next(row.gain_share_at_most for row in analysis.advice if "straggler." in (row.gain_formula or ""))
    assert analysis.verdict.saves is not None
    assert bound == pytest.approx(max(lost, analysis.verdict.saves[1]))
    waiting = next(part.share for part in analysis.waterfall.parts if part.name == "straggler_wait")
    assert waiting == pytest.approx(lost, abs=0.02)


def test_slow_stage_is_named_in_a_verdict_without_a_straggler(synthetic: Synthetic) -> None:
    places = {rank: {"pp": rank} for rank in range(4)}
    run = synthetic(device_kind="cpu", coordinates=places, plan=plan_for(2, us=60_000))
    analysis = analyse(run)
    assert analysis.pipeline is not None
    assert analysis.pipeline.slowest_stage == 2
    assert analysis.verdict.kind != "straggler"
    assert "Stage 2 is busy" in analysis.verdict.summary


@pytest.mark.parametrize("extra", [{"cpu": True}, {}, {"phase": "between_steps"}])
def test_job_of_one_host_is_not_advised_to_exclude_the_host(synthetic: Synthetic, extra: dict[str, Any]) -> None:
    def said(**where: Any) -> str:
        analysis = analyse(synthetic(device_kind="cpu", plan=plan_for(2, us=60_000, **extra), **where))
        assert analysis.verdict.rank == 2
        return " ".join([*analysis.verdict.next, *(advice_item.action for advice_item in analysis.advice)])

    assert not re.search("without|DRAIN|replace", said(folder="one", rank_fields={"host": "alone"}))
    if extra.get("cpu"):
        assert re.search("without n1", said(folder="two"))


def test_ranks_that_share_a_gpu_cause_a_warning(synthetic: Synthetic) -> None:
    def shared(rank_fields: dict[str, Any]) -> list[str]:
        warnings = analyse(synthetic(gpus=True, rank_fields=rank_fields)).source.warnings
        return [warning for warning in warnings if "share" in warning]

    (output,) = shared({"gpu_uuid": "GPU-0"})
    assert output.startswith("ranks 0, 1, 2, 3 share one GPU, which runs their work in turns")
    assert shared({}) == []
