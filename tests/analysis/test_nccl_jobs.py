"""Verdicts on simulated NCCL jobs of every layout, with one rank at fault: from traces, from profiled steps, from dumps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.nccl.dumps import write_dumps
from tests.nccl.faults import FAULTS, Fault
from tests.nccl.layouts import LARGE, LAYOUTS, LayoutJob
from tests.nccl.traces import write_traces

from rankscope.analysis.captured import analyze_captured
from rankscope.analysis.collectives.windows import reduce_trace
from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.trace.columns import read_trace
from rankscope.runs.reader import RunReader

pytestmark = pytest.mark.slow


def of_traces(folder: Path, layout: str, fault: str, *, late: int = 3, steps: int = 12) -> tuple[Analysis, float]:
    """Return the analysis of a job's traces, and what its fault costs as a share of the step."""
    job = LayoutJob(LAYOUTS[layout], FAULTS[fault], late=late, steps=steps)
    write_traces(job, folder, graphed="CUDA graph" in layout)
    usual = LayoutJob(LAYOUTS[layout], FAULTS["none"], late=late, steps=steps)
    return analyze([folder]), job.step_us / usual.step_us - 1


def saved(analysis: Analysis) -> float:
    """Return the stated gain per step as a share of the faster step."""
    assert analysis.verdict.slowdown is not None
    return analysis.verdict.slowdown - 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        ("ddp", "late input"),
        ("ddp", "garbage collection"),
        ("fsdp", "checkpoint of one rank"),
        ("fsdp", "more tokens"),
        ("moe", "slow optimizer"),
        ("pp", "garbage collection"),
        ("hsdp", "slow device"),
        ("tp", "one slow kernel"),
        ("tp x dp", "pause of the host"),
        ("accumulation", "slow host"),
        ("recompute", "more tokens"),
        ("cp", "more tokens"),
        ("moe", "more tokens"),
        ("pp", "slow device"),
        ("pp", "slow host"),
        ("pp x tp", "slow host"),
        ("pp interleaved", "slow device"),
        ("tp on the current stream", "slow device"),
        ("ddp in a CUDA graph", "slow device"),
        ("fsdp of 32", "pause of the host"),
    ],
)
def test_traces_of_every_layout_show_the_slow_rank_and_its_cause(tmp_path: Path, layout: str, fault: str) -> None:
    analysis, cost = of_traces(tmp_path, layout, fault)
    verdict = analysis.verdict
    assert (verdict.ranks, verdict.cause) == ([3], FAULTS[fault].cause), verdict.summary
    assert saved(analysis) == pytest.approx(cost, rel=0.6)


def test_late_host_is_late_in_its_annotated_phase(tmp_path: Path) -> None:
    verdict = of_traces(tmp_path, "ddp", "slow optimizer")[0].verdict
    assert (verdict.ranks, verdict.cause, verdict.phase) == ([3], "host", "optimizer"), verdict.summary


def test_checkpoint_of_one_rank_is_between_steps_with_its_advice(tmp_path: Path) -> None:
    # Three checkpoints, as in 12 steps, fall on the same of 8 ranks by chance one time in 64.
    verdict = of_traces(tmp_path, "ddp", "checkpoint of one rank", steps=16)[0].verdict
    assert (verdict.pattern, verdict.cause, verdict.phase) == ("intermittent", "checkpoint", "between_steps"), verdict.summary
    assert "async_save" in verdict.next[0]


def kernel_evidence(analysis: Analysis) -> dict[str, float]:
    return {row.name: row.value for row in analysis.findings[0].evidence if row.name.startswith("kernel_")}


def test_slow_device_slows_all_kernels_and_the_terminal_shows_it(tmp_path: Path) -> None:
    analysis, _ = of_traces(tmp_path, "fsdp", "slow device")
    assert analysis.verdict.explained_by is None
    assert kernel_evidence(analysis)["kernel_factor"] == pytest.approx(1.3, abs=0.03)
    text = " ".join(render_text(analysis).split())
    assert "5 of 5 kernels of the same grid take 1.3" in text
    assert "Compare clocks" in text


def test_single_slow_kernel_is_named_and_no_replacement_advised(tmp_path: Path) -> None:
    analysis, _ = of_traces(tmp_path, "fsdp", "one slow kernel")
    verdict = analysis.verdict
    assert (verdict.cause, verdict.explained_by) == ("compute", "few_kernels")
    assert "mlp_forward_kernel" in verdict.summary
    assert "attention" not in verdict.summary
    assert kernel_evidence(analysis)["kernel_factor"] == pytest.approx(1.6, abs=0.03)
    assert not any(
        "replace" in action or "without" in action for action in (*verdict.next, *(row.action for row in analysis.advice))
    )


def test_kernels_are_compared_in_the_slow_steps_of_the_device(tmp_path: Path) -> None:
    analysis, _ = of_traces(tmp_path, "ddp", "slow in bursts", steps=16)
    assert analysis.verdict.pattern == "intermittent"
    rows = kernel_evidence(analysis)
    assert rows["kernel_factor"] == pytest.approx(1.6, abs=0.03)
    assert rows["kernel_factor_elsewhere"] == pytest.approx(1.0, abs=0.03)
    assert "in its other steps" in analysis.verdict.summary


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["late input", "more tokens"])
def test_kernels_are_no_evidence_for_a_cause_outside_the_device(tmp_path: Path, fault: str) -> None:
    analysis, _ = of_traces(tmp_path, "ddp", fault)
    assert analysis.verdict.ranks == [3]
    assert not kernel_evidence(analysis)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "explained_by"),
    [("late input", None), ("more tokens", None), ("one slow kernel", "few_kernels"), ("slow optimizer", None)],
)
def test_two_or_three_steps_show_the_cause(tmp_path: Path, fault: str, explained_by: str | None) -> None:
    write_traces(LayoutJob(LAYOUTS["fsdp"], FAULTS[fault], steps=6), tmp_path, steps=(2, 3, 4))
    verdict = analyze([tmp_path]).verdict
    assert (verdict.ranks, verdict.cause, verdict.explained_by) == ([3], FAULTS[fault].cause, explained_by), verdict.summary


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["ddp", "moe", "pp", "pp x tp"])
@pytest.mark.parametrize("fault", ["none", "3 % slower", "one hiccup"])
def test_job_without_a_fault_has_no_straggler(tmp_path: Path, layout: str, fault: str) -> None:
    analysis, _ = of_traces(tmp_path, layout, fault)
    assert analysis.verdict.kind != "straggler", analysis.verdict.summary


def test_too_few_steps_of_all_ranks_lead_to_the_advice_to_trace_more(tmp_path: Path) -> None:
    pauses = Fault("two pauses", None, host_us=lambda step: 60_000.0 * (step in (2, 5)))
    write_traces(LayoutJob(LAYOUTS["ddp"], pauses, late=3, steps=8), tmp_path)
    analysis = analyze([tmp_path])
    assert (analysis.verdict.kind, analysis.source.coverage) == ("insufficient_data", 1.0)
    [action] = analysis.verdict.next
    assert "more steps" in action
    assert "all ranks" not in action


def test_pause_in_one_of_two_steps_names_no_rank(tmp_path: Path) -> None:
    write_traces(LayoutJob(LAYOUTS["tp x dp"], FAULTS["one hiccup"], steps=6), tmp_path, steps=(4, 5))
    assert analyze([tmp_path]).verdict.kind != "straggler"


def test_delay_of_a_pipeline_rank_during_its_idle_time_costs_nothing(tmp_path: Path) -> None:
    """The last stage has nothing to do at the start of a step."""
    analysis, cost = of_traces(tmp_path, "pp", "late input", late=3)
    assert cost < 0.02
    assert analysis.verdict.kind not in ("straggler", "insufficient_data"), analysis.verdict.summary


@pytest.mark.sampled(4)
@pytest.mark.parametrize("late", range(8))
def test_slow_rank_of_a_pipeline_with_two_replicas_is_named(tmp_path: Path, late: int) -> None:
    analysis, cost = of_traces(tmp_path, "pp gpipe", "slow device", late=late, steps=10)
    verdict = analysis.verdict
    assert (verdict.ranks, verdict.cause, verdict.stage) == ([late], "compute", late % 4), verdict.summary
    assert saved(analysis) == pytest.approx(cost, rel=0.25)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("late", [0, 4])
def test_late_input_of_the_first_stage_delays_its_pipeline(tmp_path: Path, late: int) -> None:
    analysis, cost = of_traces(tmp_path, "pp gpipe", "late input", late=late, steps=10)
    assert (analysis.verdict.ranks, analysis.verdict.cause) == ([late], "input"), analysis.verdict.summary
    assert saved(analysis) == pytest.approx(cost, rel=0.25)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", ["none", "3 % slower", "one hiccup"])
@pytest.mark.parametrize("steps", [6, 10])
def test_healthy_pipeline_with_two_replicas_names_no_rank(tmp_path: Path, fault: str, steps: int) -> None:
    assert of_traces(tmp_path, "pp gpipe", fault, late=4, steps=steps)[0].verdict.kind != "straggler"


def test_ring_of_sends_and_receives_is_no_pipeline(tmp_path: Path) -> None:
    """Context parallelism: keys and values go round, and all ranks do the same work."""
    analysis, _ = of_traces(tmp_path, "ring attention", "slow device", late=2)
    assert (analysis.verdict.ranks, analysis.verdict.stage) == ([2], None), analysis.verdict.summary
    assert "stage_transfers" not in {row.name for row in analysis.advice}


def test_experts_with_more_tokens_are_recognised_by_exchanged_rows(tmp_path: Path) -> None:
    """A kernel that is written to fill the device has one grid for any amount of work."""
    job = LayoutJob(LAYOUTS["moe"], FAULTS["more tokens"], steps=12)
    for launch in job.ranks[3].launches:
        launch.grid = 128 if "gemm" in launch.name or "attention" in launch.name else launch.grid
    write_traces(job, tmp_path)
    verdict = analyze([tmp_path]).verdict
    assert (verdict.ranks, verdict.cause) == ([3], "imbalance"), verdict.summary


@pytest.mark.full
def test_ranks_with_a_slow_link_are_no_slow_hosts(tmp_path: Path) -> None:
    analysis, _ = of_traces(tmp_path, "accumulation", "slow link")
    assert (analysis.verdict.ranks, analysis.verdict.cause) == ([2, 3], "communication"), analysis.verdict.summary


def test_own_times_are_compared_only_with_the_traces_of_all_ranks(tmp_path: Path) -> None:
    """A rank without a trace may be slower than all others."""
    of_traces(tmp_path, "pp", "slow device")
    (tmp_path / "rank5.json").unlink()
    assert analyze([tmp_path]).verdict.kind != "straggler"


def test_batched_sends_and_receives_name_both_ends(tmp_path: Path) -> None:
    analysis, _ = of_traces(tmp_path, "pp", "none", steps=3)
    collectives = analysis.collectives
    assert collectives is not None
    pairs = {(row.origin, row.waiter) for row in collectives.waits if row.op == "send"}
    assert pairs
    assert all(abs(origin - waiter) == 1 for origin, waiter in pairs)
    assert not collectives.unmatched


@pytest.fixture
def run_of(tmp_path: Path, synthetic: Callable[..., Any], add_windows: Callable[..., None]) -> Callable[[str, str], Path]:
    """Return a function from layout and fault to a run: all steps are profiled, and step records do not know own time."""

    def make(layout: str, fault: str) -> Path:
        job = LayoutJob(LAYOUTS[layout], FAULTS[fault], steps=12)
        folder = tmp_path / "traces"
        folder.mkdir()
        write_traces(job, folder)
        run: Path = synthetic(ranks=job.world, steps=12, signals=False).write()
        for rank in range(job.world):
            reduction = reduce_trace(read_trace(folder / f"rank{rank}.json"))
            add_windows(run, rank, reduction.breakdowns, reduction.collectives)
        return run

    return make


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("layout", "fault"),
    [("pp", "slow device"), ("pp gpipe", "slow device"), ("moe", "more tokens"), ("tp x dp", "slow device")],
)
def test_profiled_steps_of_a_run_show_the_slow_device(run_of: Callable[[str, str], Path], layout: str, fault: str) -> None:
    run = run_of(layout, fault)
    verdict = analyze([run]).verdict
    assert (verdict.ranks, verdict.cause, verdict.evidence_source) == ([3], "compute", "windows"), verdict.summary
    captured = analyze_captured(RunReader(run), 0, range(8), range(12)).verdict
    assert (captured.ranks, captured.cause) == ([3], "compute"), captured.summary


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("layout", "fault", "named"),
    [
        ("pp", "slow device", [3]),
        ("pp", "none", []),
        ("pp", "late input", []),
        ("pp x tp", "pause of the host", [3]),
        ("pp interleaved", "more tokens", [3]),
        ("pp gpipe", "slow device", [3]),
        ("pp gpipe", "none", []),
        ("ring attention", "slow device", [3]),
        ("moe", "more tokens", [3]),
        ("moe", "none", []),
    ],
)
def test_dumps_name_the_slow_rank_where_operations_cannot_be_matched(
    tmp_path: Path, layout: str, fault: str, named: list[int]
) -> None:
    write_dumps(LayoutJob(LAYOUTS[layout], FAULTS[fault], steps=30), tmp_path)
    verdict = analyze([tmp_path]).verdict
    assert verdict.ranks == named, verdict.summary
    assert verdict.kind != "insufficient_data", verdict.summary


def test_dumps_do_not_clear_ranks_whose_delay_compute_may_hide(tmp_path: Path) -> None:
    """Context parallelism gathers as sharded parameters do, but compute waits for it: the longest wait says little."""
    write_dumps(LayoutJob(LAYOUTS["cp"], FAULTS["slow device"], steps=30), tmp_path)
    verdict = analyze([tmp_path]).verdict
    assert verdict.kind == "insufficient_data"
    assert "were last at collectives beside compute, by at least" in verdict.summary


@pytest.mark.full
def test_pauses_of_other_ranks_do_not_hide_a_slow_rank_in_a_large_job(tmp_path: Path) -> None:
    """In each step five of 256 ranks pause, some as long as the slow one takes longer in all. Both delay the others."""
    job = LayoutJob(LARGE["fsdp of 256"], FAULTS["slow device"], late=117, steps=8)
    usual = LayoutJob(LARGE["fsdp of 256"], FAULTS["none"], late=117, steps=8)
    cost = job.step_us / usual.step_us - 1
    for name, write, least in (("traces", write_traces, 0.7), ("dumps", write_dumps, 0.5)):
        folder = tmp_path / name
        folder.mkdir()
        write(job, folder)
        analysis = analyze([folder])
        assert analysis.verdict.ranks == [117], analysis.verdict.summary
        assert least * cost <= saved(analysis) <= 1.1 * cost, name


@pytest.mark.full
def test_dumps_of_a_thousand_ranks_show_the_slow_rank(tmp_path: Path) -> None:
    late = 517
    write_dumps(LayoutJob(LARGE["fsdp of 1024"], FAULTS["slow device"], late=late, steps=12), tmp_path)
    verdict = analyze([tmp_path]).verdict
    assert verdict.ranks == [late], verdict.summary
