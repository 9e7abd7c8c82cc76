"""Causes of slow ranks and of limits, from step records, kernels and stacks with known truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.breakdowns import breakdown
from tests.analysis.conftest import Plan, analyse
from tests.step_files import append

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import DeviceKind, KernelRecord, PhaseTimes, StackLine, StackSamples

Synthetic = Callable[..., Any]


def at(rank: int | None = None, every: int = 1, **extra: Any) -> Plan:
    """Return the plan that plants ``extra`` in every N-th step of a rank, or of all ranks."""
    return lambda item, step: extra if rank in (None, item) and step % every == 0 else None


def told(analysis: Analysis) -> str:
    """Return the next actions and the advice."""
    return " ".join([*analysis.verdict.next, *(advice_item.action for advice_item in analysis.advice)])


def sections(tag: str, us: float, *, where: Callable[[int, int], bool]) -> Callable[[int, int], dict[str, Any]]:
    """Return step fields with the measured time of an activity where ``where(rank, step)`` is true."""
    return lambda rank, step: {"sections_us": {tag: us}} if where(rank, step) else {}


# An activity is the cause only with its share of the excess


@pytest.mark.parametrize("tag", ["checkpoint", "eval"])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("phase", ["forward", "backward", "between_steps", "data"])
def test_short_activity_beside_a_delay_is_not_the_cause(synthetic: Synthetic, tag: str, every: int, phase: str) -> None:
    # Given a rank that sleeps, and pickles a scalar in the same steps, as the recorder measured
    plan = at(0, every, us=60_000 * every, phase=phase, tags=[tag])
    fields = sections(tag, 100.0, where=lambda rank, step: rank == 0 and step % every == 0)
    run = synthetic(steps=120, device_kind="cpu", plan=plan, fields=fields)
    verdict = analyse(run).verdict
    assert (verdict.rank, verdict.phase) == (0, phase), verdict.summary
    assert verdict.cause == ("input" if phase == "data" else "host"), verdict.summary
    assert "checkpoint" not in verdict.summary
    assert "evaluat" not in verdict.summary
    by_cause = {item.cause: item.lost_share or 0.0 for item in whatif([run.path]).by_cause}
    assert by_cause["checkpoint" if tag == "checkpoint" else "evaluation"] < 0.05


@pytest.mark.parametrize("tag", ["checkpoint", "eval"])
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_tag_on_all_steps_does_not_explain_a_delay_elsewhere(synthetic: Synthetic, tag: str, phase: str) -> None:
    # Also in recordings that did not measure activities
    verdict = analyse(synthetic(device_kind="cpu", plan=at(0, us=30_000, phase=phase, tags=[tag]))).verdict
    assert (verdict.rank, verdict.cause, verdict.phase) == (0, "host", phase), verdict.summary


def test_checkpoint_in_steps_slow_in_forward_is_not_the_cause(synthetic: Synthetic) -> None:
    plan = at(0, 8, us=300_000, tags=["checkpoint"])
    verdict = analyse(synthetic(steps=160, device_kind="cpu", plan=plan)).verdict
    assert (verdict.rank, verdict.cause, verdict.phase) == (0, "host", "forward"), verdict.summary


@pytest.mark.parametrize(("tag", "cause"), [("checkpoint", "checkpoint"), ("eval", "evaluation")])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("measured", [True, False])
def test_activity_with_most_of_the_delay_is_the_cause(
    synthetic: Synthetic, tag: str, cause: str, *, every: int, measured: bool
) -> None:
    us = 60_000 * every
    plan = at(0, every, us=us, phase="between_steps", tags=[tag])
    fields = sections(tag, 0.9 * us, where=lambda rank, step: measured and rank == 0 and step % every == 0)
    run = synthetic(steps=120, device_kind="cpu", plan=plan, fields=fields)
    analysis = analyse(run)
    verdict = analysis.verdict
    assert (verdict.rank, verdict.cause, verdict.phase) == (0, cause, "between_steps"), verdict.summary
    (values,) = [row.value for row in analysis.findings[0].evidence if row.name == f"{cause}_excess"]
    assert values == pytest.approx(us, rel=0.15)
    by_cause = {row.cause: row for row in whatif([run.path]).by_cause}
    assert (by_cause[cause].lost_share or 0.0) > 0.85


@pytest.mark.parametrize(("checkpoint", "evaluation", "cause"), [(0.7, 0.2, "checkpoint"), (0.2, 0.7, "evaluation")])
def test_longer_of_two_activities_in_the_same_steps_is_the_cause(
    synthetic: Synthetic, checkpoint: float, evaluation: float, cause: str
) -> None:
    us = 300_000
    measured = {"sections_us": {"checkpoint": checkpoint * us, "eval": evaluation * us}}
    verdict = analyse(
        synthetic(
            steps=120,
            plan=at(1, 5, phase="between_steps", us=us, tags=["checkpoint", "eval"]),
            fields=lambda rank, step: measured if rank == 1 and step % 5 == 0 else {},
        )
    ).verdict
    assert (verdict.rank, verdict.cause) == (1, cause), verdict.summary


# "The same work" only where it was counted


def profiled(
    run: Path, calls: dict[int, dict[str, tuple[int, float]]], steps: tuple[int, ...] = (10, 11), kind: DeviceKind = "cpu"
) -> Analysis:
    """Add profiled steps with the calls and the time per call of operators by rank, and analyse the run."""
    for rank, operators in calls.items():
        rows = [
            KernelRecord(step=step, name=name, kind="compute", total_us=count * us, calls=count)
            for step in steps
            for name, (count, us) in operators.items()
        ]
        busy = sum(count * us for count, us in operators.values())
        windows = [breakdown(step, compute=busy, idle=100_000, device_kind=kind) for step in steps]
        append(rank_dir(run, 0, rank), "kernels", *rows)
        append(rank_dir(run, 0, rank), "windows", *windows)
    return analyze([run])


def busy_rank(synthetic: Synthetic, rank: int = 2, **options: Any) -> Path:
    """Write a run on CPUs whose rank computes 60 ms longer than the others."""
    written: Path = synthetic(device_kind="cpu", plan=at(rank, us=60_000, cpu=True), **options).write()
    return written


USUAL = {"aten::conv2d": (6, 3_750.0), "aten::linear": (4, 1_000.0)}


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ({"aten::conv2d": (22, 3_750.0), "aten::linear": (4, 1_000.0)}, "aten::conv2d runs 22 times per step, on the others 6"),
        ({**USUAL, "aten::svd": (3, 20_000.0)}, "aten::svd runs 3 times per step, on the others not at all"),
        ({"aten::conv2d": (30, 3_000.0), "aten::linear": (4, 1_000.0)}, "aten::conv2d runs 30 times"),
    ],
)
def test_more_calls_are_more_work(synthetic: Synthetic, slow: dict[str, tuple[int, float]], name: str) -> None:
    analysis = profiled(busy_rank(synthetic), {rank: slow if rank == 2 else USUAL for rank in range(4)})
    verdict = analysis.verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (2, "imbalance", "more_calls"), verdict.summary
    assert name in verdict.summary
    assert "same work" not in verdict.summary
    assert any(row.name == "calls" for row in analysis.findings[0].evidence)
    assert not any(word in told(analysis) for word in ("clock", "temperature", "GPU"))


def test_equal_calls_that_take_longer_are_the_same_work(synthetic: Synthetic) -> None:
    slow = {"aten::conv2d": (6, 13_750.0), "aten::linear": (4, 1_000.0)}
    analysis = profiled(busy_rank(synthetic), {rank: slow if rank == 2 else USUAL for rank in range(4)})
    verdict = analysis.verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (2, "compute", None)
    assert "for the same work" in verdict.summary
    assert not any(word in told(analysis) for word in ("clock", "temperature", "GPU"))


@pytest.mark.parametrize(
    ("calls", "fields", "claim"),
    [
        ({}, {}, "for inputs of the same size"),
        ({}, {"input_elements": None, "samples": None}, None),
        # The operators take as long as on the others: what takes longer is not among them.
        (dict.fromkeys(range(4), USUAL), {}, "for inputs of the same size"),
        ({0: USUAL, 1: USUAL}, {}, "for inputs of the same size"),
        (
            {rank: {"aten::mm": (5, 15_000.0 if rank == 2 else 3_000.0)} for rank in range(4)},
            {"samples": None},
            "for the same work",
        ),
        (
            {rank: {"aten::mm": (5, 15_000.0 if rank == 2 else 3_000.0)} for rank in range(4)},
            {"input_elements": None, "samples": None},
            "for as many calls",
        ),
    ],
)
def test_same_work_is_claimed_only_as_far_as_it_was_counted(
    synthetic: Synthetic, calls: dict[int, dict[str, tuple[int, float]]], fields: dict[str, Any], claim: str | None
) -> None:
    verdict = profiled(busy_rank(synthetic, fields=lambda *_: fields), calls).verdict
    assert (verdict.rank, verdict.cause) == (2, "compute"), verdict.summary
    for item in ("for the same work", "for inputs of the same size", "for as many calls"):
        assert (item in verdict.summary) == (item == claim), verdict.summary


def test_kernel_in_place_of_another_is_not_more_work(synthetic: Synthetic) -> None:
    slow = {"mkldnn::conv_slow": (6, 13_750.0), "aten::linear": (4, 1_000.0)}
    verdict = profiled(busy_rank(synthetic), {rank: slow if rank == 2 else USUAL for rank in range(4)}).verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (2, "compute", None), verdict.summary
    assert "same work" not in verdict.summary


@pytest.mark.parametrize(("each_us", "calls"), [(6_000.0, 16), (16_000.0, 6)])
def test_kernel_call_counts_separate_more_work_from_a_slow_device(synthetic: Synthetic, each_us: float, calls: int) -> None:
    run = synthetic(plan=at(2, us=60_000, cpu=True)).write()
    usual, slow = {"sgemm": (6, 6_000.0)}, {"sgemm": (calls, each_us)}
    verdict = profiled(run, {rank: slow if rank == 2 else usual for rank in range(4)}, kind="cuda").verdict
    more = calls > 6
    assert (verdict.rank, verdict.cause) == (2, "imbalance" if more else "compute"), verdict.summary
    assert ("sgemm runs 16 times" if more else "its device needs longer for the same work") in verdict.summary


def test_calls_outside_the_costliest_ten_are_not_taken_for_more_work(synthetic: Synthetic) -> None:
    # Given ten costlier operators on the peers, which hide as many calls of the last one as the rank makes
    costly = {f"aten::op{number}": (1, 12_000.0 - number) for number in range(9)}
    slow, usual = {**costly, "aten::add": (10, 1_190.0)}, {**costly, "aten::op9": (1, 11_950.0)}
    verdict = profiled(busy_rank(synthetic), {rank: slow if rank == 2 else usual for rank in range(4)}).verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (2, "compute", None), verdict.summary


def test_calls_of_steps_without_slowness_are_no_evidence(synthetic: Synthetic) -> None:
    run = synthetic(steps=120, device_kind="cpu", plan=at(3, 4, us=200_000, cpu=True)).write()
    slow = {"aten::mm": (5, 60_000.0)}
    verdict = profiled(run, {rank: slow if rank == 3 else {"aten::mm": (5, 10.0)} for rank in range(4)}, (9, 10, 11)).verdict
    assert (verdict.rank, verdict.cause) == (3, "compute")
    assert "same work" not in verdict.summary


def stacks(line: int, samples: int) -> StackSamples:
    lines = [
        StackLine(file="/job/train.py", line=5, function="main", samples=100 - samples),
        StackLine(file="/job/train.py", line=line, function="block", samples=samples, phase="forward"),
    ]
    return StackSamples(start_unix_ns=1, end_unix_ns=2, first_step=10, last_step=20, samples=100, lines=lines)


@pytest.mark.parametrize("reached", [True, False])
def test_line_that_healthy_ranks_never_reach_is_other_work(synthetic: Synthetic, reached: bool) -> None:
    run = busy_rank(synthetic)
    for rank in range(4):
        append(rank_dir(run, 0, rank), "stacks", stacks(88 if rank == 2 or reached else 9, 60 if rank == 2 else 15))
    verdict = analyze([run]).verdict
    assert verdict.stalls_at is not None
    assert (verdict.rank, verdict.stalls_at.line) == (2, 88)
    assert (verdict.cause, verdict.explained_by) == (("compute", None) if reached else ("imbalance", "other_code"))
    assert ("never reach" in verdict.summary) is not reached
    assert "same work" not in verdict.summary


# Only some ranks load data


@pytest.mark.parametrize("loaders", [(0,), (0, 2)])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_rank_that_alone_loads_data_is_compared_with_the_other_ranks(
    synthetic: Synthetic, loaders: tuple[int, ...], kind: str
) -> None:
    def fields(rank: int, step: int) -> dict[str, Any]:
        del step
        return (
            {} if rank in loaders else {"phases_us": PhaseTimes(forward=30e3, backward=130e3, optimizer=10e3, between_steps=5e3)}
        )

    plan: Plan = lambda rank, _: {"phase": "data", "us": 60_000} if rank in loaders else None  # noqa: E731
    analysis = analyse(synthetic(device_kind=kind, ranks=8, noise=0.01, plan=plan, fields=fields))
    verdict = analysis.verdict
    assert (verdict.ranks, verdict.cause, verdict.phase) == (list(loaders), "input", "data"), verdict.summary
    assert analysis.waterfall is not None
    part = next(part for part in analysis.waterfall.parts if part.name == "input")
    assert part.us is not None


# The script's own profiler


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("every", [1, 3])
def test_script_profiler_on_one_rank_is_the_cause(synthetic: Synthetic, kind: str, every: int) -> None:
    plan = at(0, every, us=60_000 * every, cpu=True, tags=["profiler"])
    analysis = analyse(synthetic(steps=120, device_kind=kind, plan=plan))
    verdict = analysis.verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (0, "host", "profiler"), verdict.summary
    assert "own profiler" in verdict.summary
    assert "profiler" in verdict.next[0]
    assert "py-spy" not in told(analysis)


@pytest.mark.parametrize(
    ("extra", "tagged", "cause"),
    [
        ({"us": 60_000}, lambda rank: rank == 0, "host"),  # it sleeps
        ({"us": 60_000, "cpu": True}, lambda _: True, "compute"),  # all ranks have it
        ({"us": 60_000, "cpu": True, "elements": 2.0}, lambda rank: rank == 0, "imbalance"),
    ],
)
def test_profiler_beside_another_cause_is_not_the_cause(
    synthetic: Synthetic, extra: dict[str, Any], tagged: Callable[[int], bool], cause: str
) -> None:
    plan: Plan = lambda rank, _: (extra if rank == 0 else {}) | ({"tags": ["profiler"]} if tagged(rank) else {})  # noqa: E731
    verdict = analyse(synthetic(device_kind="cpu", plan=plan)).verdict
    assert (verdict.rank, verdict.cause, verdict.explained_by) == (0, cause, None), verdict.summary


def test_rank_equally_slow_without_its_profiler_has_another_cause(synthetic: Synthetic) -> None:
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        return {"us": 60_000, "cpu": True, "tags": ["profiler"] if step % 3 else []} if rank == 0 else None

    verdict = analyse(synthetic(steps=120, device_kind="cpu", plan=plan)).verdict
    assert (verdict.rank, verdict.cause) == (0, "compute"), verdict.summary


# Evaluations and checkpoints of all ranks limit the step


@pytest.mark.parametrize(("tag", "cause"), [("eval", "evaluation"), ("checkpoint", "checkpoint")])
@pytest.mark.parametrize(("kind", "cpu"), [("cpu", True), ("cpu", False), ("cuda", True)])
@pytest.mark.parametrize("every", [4, 1])
def test_activity_of_all_ranks_limits_the_step(
    synthetic: Synthetic, tag: str, cause: str, *, kind: str, cpu: bool, every: int
) -> None:
    us = 200_000 * every
    plan = at(every=every, phase="between_steps", us=us, cpu=cpu, tags=[tag])
    fields = sections(tag, us, where=lambda _, step: step % every == 0)
    analysis = analyse(synthetic(steps=80, noise=0.01, device_kind=kind, plan=plan, fields=fields))
    verdict = analysis.verdict
    assert (verdict.kind, verdict.cause, verdict.phase) == ("host_bound", cause, None), verdict.summary
    assert ("evaluation" if tag == "eval" else "checkpoints") in verdict.summary
    share = next(row.value for row in analysis.findings[0].evidence if row.name == f"share.{cause}")
    assert share == pytest.approx(0.65, abs=0.03)
    assert f"{share:.0%}" in verdict.summary
    assert "py-spy" not in told(analysis)
    assert any(word in verdict.next[0] for word in ("Evaluate", "checkpoints"))


def test_tagged_evaluation_in_forward_limits_the_step(synthetic: Synthetic) -> None:
    plan = at(every=4, us=800_000, cpu=True, tags=["eval"])
    verdict = analyse(synthetic(steps=80, noise=0.01, device_kind="cpu", plan=plan)).verdict
    assert (verdict.kind, verdict.cause) == ("host_bound", "evaluation"), verdict.summary


def test_host_code_beside_a_short_evaluation_is_still_the_cause(synthetic: Synthetic) -> None:
    plan: Plan = lambda _, step: {"phase": "between_steps", "us": 200_000, "tags": ["eval"] if step % 4 == 0 else []}  # noqa: E731
    analysis = analyse(synthetic(steps=80, noise=0.01, device_kind="cpu", plan=plan))
    assert (analysis.verdict.cause, analysis.verdict.phase) == ("host", "between_steps"), analysis.verdict.summary
    assert "py-spy" in told(analysis)


# The cause of a slowness that moves


@pytest.mark.parametrize(
    ("extra", "cause"),
    [
        ({"gc": True, "cpu": True}, "gc"),
        ({"phase": "between_steps", "tags": ["checkpoint"]}, "checkpoint"),
        ({"phase": "data"}, "input"),
        ({"run_queue": True}, "compute"),
        ({}, "host"),
    ],
)
def test_rotating_slowness_has_the_cause_of_its_ranks(synthetic: Synthetic, extra: dict[str, Any], cause: str) -> None:
    run = synthetic(steps=80, device_kind="cpu", plan=lambda rank, step: {"us": 90_000, **extra} if step % 4 == rank else None)
    analysis = analyse(run)
    assert (analysis.verdict.pattern, analysis.verdict.cause) == ("rotating", cause), analysis.verdict.summary


def test_majority_of_ranks_decides_the_cause_of_rotating_slowness(synthetic: Synthetic) -> None:
    # Given a worst rank that sleeps, while the others collect garbage
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        if step % 4 != rank:
            return None
        return {"us": 100_000} if rank == 3 else {"us": 90_000, "gc": True, "cpu": True}

    analysis = analyse(synthetic(steps=180, device_kind="cpu", plan=plan))
    assert (analysis.verdict.pattern, analysis.verdict.cause) == ("rotating", "gc"), analysis.verdict.summary
