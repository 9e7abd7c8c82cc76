"""Texts of the overview."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.dashboards.blocks import draw, notes, page_links, run_of, run_text, text_of, write
from tests.dashboards.hosts_at_fault import RARE, host_runs
from tests.dashboards.recorded_run import START_NS
from tests.step_files import table_of_records

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis, Verdict
from rankscope.analysis.result.costs import Advice, AdviceEvidence, Memory, RankMemory, Throughput
from rankscope.analysis.verdict.advice_table import TABLE
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.overview.advice import AS_ABOVE, FIGURES
from rankscope.dashboards.overview.view import VIEW, work_and_memory
from rankscope.dashboards.ranks.view import VIEW as RANKS
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.runs.records import PhaseTimes, StepRecord

WORK = Throughput(
    steps=50, step_us=80_000.0, replicas=4, samples_per_second=1_600.0, tokens_per_second=None, samples_per_second_per_rank=400.0,
    tokens_per_second_per_rank=None, flops_per_second_per_rank=4e14, gpu_name="NVIDIA H100", peak_dtype="bf16", peak_flops=1e15,
    mfu=0.4,
)  # fmt: skip
MEMORY = Memory(
    ranks=[
        RankMemory(
            rank=3, samples=9, allocated_bytes=1 << 30, reserved_bytes=70 << 30, peak_allocated_bytes=60 << 30,
            device_bytes=80 << 30, peak_share=0.75, fragmentation=None, resident_bytes=None, allocator_retries=0,
        )
    ],
    growth=[],
)  # fmt: skip
ADVICE = Advice(
    name="overlap",
    evidence=[AdviceEvidence(name="share.exposed_communication", value=0.266, unit="ratio", source="windows", limit=">= 0.1")],
    action="Let gradients be reduced while backward goes on",
    gain_share_at_most=0.26,
    gain_us_at_most=8_000.0,
    gain_formula=None,
    check="rankscope compare runs/bert NEW_RUN: share of exposed communication must fall",
)


def part(source: Any, name: str, *, rank: int | None = None) -> str:
    """Return the text of a part of the overview."""
    return text_of(write(VIEW, name, run_of(source), PageState(rank=rank)), " ")


def slowing(at: int, by_us: float, *, steps: int = 100) -> StepTable:
    """Return steps of four ranks; from step ``at`` on rank 1 takes longer, and the others wait for it."""
    rng = np.random.default_rng(0)

    def record(rank: int, step: int) -> StepRecord:
        more = by_us if step >= at else 0.0
        waited = 0.0 if rank == 1 else more
        wall = 50_000 + more + float(rng.normal(0, 300))
        return StepRecord(
            step=step, start_unix_ns=START_NS + step * 10**8, wall_us=wall, phases_us=PhaseTimes(forward=wall),
            blocked_us=PhaseTimes(forward=waited),
        )  # fmt: skip

    return table_of_records({rank: [record(rank, step) for step in range(steps)] for rank in range(4)})


def test_run_page_shows_blamed_rank_cause_cost_and_next_command(memory_runs: Any) -> None:
    output = run_text(memory_runs, VIEW)
    for expected in (
        "Rank 2 on host node-1 makes the other 3 ranks wait", "Straggler", "slow input", "phase data", "rank 2", "host node-1",
        "GPU-00000002", "96%", "2.07x", "12.4 GPU-h", "31.00 USD", "100%", "4 of 4 ranks", "steps 5 to 59",
        "rankscope analyze runs/bert --format json", "Look at the data loader of rank 2", "Finished",
    ):  # fmt: skip
        assert expected in output, expected
    assert "SIMULATED" not in output


def test_host_at_fault_is_shown_with_ranks_and_confidence_interval() -> None:
    text = run_text(host_runs(), VIEW)
    assert "host node-2" in text
    assert "ranks 8 to 11" in text
    assert "19% to 26%" in text
    assert "20 steps of 16 ranks" in text
    hrefs = [link.href for link in page_links(write(VIEW, "verdict", run_of(host_runs()), PageState()))]
    assert "/run/run-1/ranks?rank=9" in hrefs
    assert any(href.endswith("without=host:node-2") for href in hrefs)


def test_only_some_of_many_hosts_are_named() -> None:
    text = run_text(host_runs(hosts=[f"node-{at}" for at in range(9)], ranks=list(range(36))), VIEW)
    assert "node-3" in text
    assert "and 5 more hosts" in text
    assert "ranks 0 to 35" in text


def test_rare_steps_are_shown_with_their_share_and_a_link() -> None:
    card = write(VIEW, "verdict", run_of(host_runs()), PageState())
    text = text_of(card, " ")
    assert "61%" in text
    assert RARE.summary in text
    assert "/run/run-1/ranks?rank=0&steps=7-14" in [link.href for link in page_links(card)]


def test_balanced_verdict_shows_the_upper_bound_of_a_loss() -> None:
    source = host_runs(kind="balanced", rank=None, ranks=[], hosts=[], saves=None, costs_at_most=0.0251)
    text = run_text(source, VIEW)
    assert "at most 2.6%" in text
    assert "Healing saves" not in text


def test_crash_is_shown_before_the_verdict() -> None:
    text = run_text(host_runs(failure="rank 3 crashed before the end of training"), VIEW)
    assert text.index("The job failed: rank 3 crashed") < text.index("Confidence")


def test_simulated_run_is_marked_as_simulated(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    simulated = msgspec.structs.replace(analysis, source=msgspec.structs.replace(analysis.source, simulated=True))
    memory_runs.put(simulated, table, simulated=True)
    output = run_text(memory_runs, VIEW)
    assert "SIMULATED" in output
    assert "readings of this run are simulated" in output


def test_warnings_and_unknown_values_are_shown(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    vague = msgspec.structs.replace(
        analysis,
        source=msgspec.structs.replace(analysis.source, coverage=None, warnings=["rank 3 was killed"]),
        verdict=msgspec.structs.replace(analysis.verdict, confidence=None, slowdown=None, gpu_hours_lost=None, cost=None),
    )
    memory_runs.put(vague, table)
    output = run_text(memory_runs, VIEW)
    assert "Rank 3 was killed" in output
    assert output.count(" not known ") >= 4, "confidence, slowdown, GPU time and coverage"
    assert "USD" not in output


def test_ranks_with_disabled_recorder_are_shown(memory_runs: Any) -> None:
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], unrecorded="rank 2")
    assert "Recorder off: rank 2" in run_text(memory_runs, VIEW)


def test_evidence_is_shown_in_readable_units(memory_runs: Any) -> None:
    output = run_text(memory_runs, VIEW)
    assert "own time excess 40 ms per step" in output
    assert "p = 0.0005 permutation test" in output


def test_silent_run_shows_its_last_write_time(memory_runs: Any) -> None:
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status="silent", last_write_unix_ns=START_NS)
    output = run_text(memory_runs, VIEW)
    assert "Silent" in output
    assert "2026-09-21" in output


def test_run_without_steps_shows_that_data_is_missing(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    write_run(tmp_path / "run", ranks=0)
    source = DiskRuns(tmp_path)
    assert "Not enough data" in run_text(source, VIEW)
    assert "No step has been recorded yet" in notes(draw(RANKS, "step-heatmap", run_of(source), PageState()).figure)[0]


def test_insufficient_data_verdict_lists_no_unknown_values(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    nothing = Verdict(kind="insufficient_data", summary="Not enough data for a verdict.")
    memory_runs.put(msgspec.structs.replace(analysis, verdict=nothing), table)
    facts = part(memory_runs, "verdict")
    assert "Confidence" not in facts
    assert "not known" not in facts
    assert "Judged by 60 steps" in facts


def test_change_shows_step_size_rank_and_a_link(memory_runs: Any, analysis: Analysis) -> None:
    # Given a run whose rank 1 is slower from step 60 on
    memory_runs.put(msgspec.structs.replace(analysis, findings=[]), slowing(60, 20_000.0))
    # When the list of changes is made
    output = part(memory_runs, "changes", rank=3)
    # Then the change is listed, and its link shows the steps around it and keeps the selection
    assert re.search(r"the step takes 7\d(\.\d)? ms instead of (50|49\.\d) ms \(\+4\d%\): own time changed on rank 1", output), (
        output
    )
    assert "From step 60" in output
    assert "/run/run-1?rank=3&steps=20-99" in output


def test_steady_run_reports_no_lasting_change(memory_runs: Any, analysis: Analysis) -> None:
    memory_runs.put(msgspec.structs.replace(analysis, findings=[]), slowing(60, 0.0))
    assert "No lasting change of the step time by 5% or more" in part(memory_runs, "changes")


def test_findings_on_step_ranges_and_later_attempts_are_changes(memory_runs: Any, analysis: Analysis) -> None:
    finding = msgspec.structs.replace(analysis.findings[0], steps=(10, 31), explained_by="thermal_throttling")
    memory_runs.put(msgspec.structs.replace(analysis, findings=[finding]), slowing(60, 0.0), attempts=2)
    output = part(memory_runs, "changes")
    assert "Steps 10 to 30" in output
    assert "Explained by thermal throttling." in output
    assert "attempt 2 begins" in output


def test_known_throughput_utilisation_and_memory_are_shown(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(msgspec.structs.replace(analysis, throughput=WORK, memory=MEMORY), table)
    output = part(memory_runs, "facts")
    assert "Samples 1,600/s" in output
    assert "Tokens" not in output, "samples are known"
    assert re.search(r"40\.0%.*of the bf16 peak of NVIDIA H100", output)
    assert re.search("GPU memory left 20 GiB.*of 80 GiB, on rank 3, the fullest", output)


def test_unknown_throughput_and_memory_are_not_shown_as_zero(memory_runs: Any) -> None:
    output = part(memory_runs, "facts")
    assert output.count("not known") == 3
    assert " 0" not in output


def test_advice_shows_maximum_savings_and_a_check(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    memory_runs.put(msgspec.structs.replace(analysis, advice=[ADVICE, ADVICE]), table)
    output = part(memory_runs, "advice")
    assert "Saves at most 26% of the step (8 ms)" in output
    assert re.search(r"26\.6% of the step is communication.*10%.*profiled steps", output)
    assert "share.exposed" not in output
    assert "To check: share of exposed communication must fall" in output
    assert output.count("rankscope compare runs/bert NEW_RUN") == 1, "the command that checks all of it is there once"


def test_advice_of_the_verdict_is_not_repeated(memory_runs: Any, analysis: Analysis, table: StepTable) -> None:
    again = msgspec.structs.replace(ADVICE, action=analysis.verdict.next[1], gain_share_at_most=0.52)
    less = msgspec.structs.replace(again, gain_share_at_most=0.05, check="share of input must fall")
    memory_runs.put(msgspec.structs.replace(analysis, advice=[again, ADVICE, less]), table)
    output = part(memory_runs, "advice")
    assert analysis.verdict.next[1] not in output
    assert output.count(AS_ABOVE) == 1
    assert "at most 52% of the step" in output
    assert "at most 5%" not in output
    assert "must fall; share of input must fall" in output
    assert ADVICE.action in output


def test_every_quantity_used_by_advice_has_a_label() -> None:
    assert {condition.figure for row in TABLE for condition in row.when} <= FIGURES.keys()


def test_cpu_job_has_no_row_for_gpu_memory(analysis: Analysis) -> None:
    on_cpus = msgspec.structs.replace(
        analysis, ranks=[msgspec.structs.replace(rank, device_kind="cpu") for rank in analysis.ranks]
    )

    assert "GPU memory left" in {fact.name for fact in work_and_memory(analysis)}
    assert "GPU memory left" not in {fact.name for fact in work_and_memory(on_cpus)}
