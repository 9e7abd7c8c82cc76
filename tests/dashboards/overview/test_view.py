"""Texts of the overview and of the overlap view."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.evidence.steps import StepTable
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.analysis.result.costs import Advice, AdviceEvidence, Memory, RankMemory, Throughput
from rankscope.analysis.verdict.advice_table import TABLE
from rankscope.dashboards.app import create_app
from rankscope.dashboards.overview.advice import FIGURES
from rankscope.dashboards.overview.view import work_and_memory
from rankscope.runs.records import PhaseTimes, StepRecord

PATIENCE_MS = 60_000

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


def words(component: Any) -> str:
    """Return all text and links of a serialised component tree."""
    if isinstance(component, dict):
        props = component.get("props", component)
        return " ".join(words(props[name]) for name in ("children", "href", "value") if name in props)
    return " ".join(map(words, component)) if isinstance(component, list) else "" if component is None else str(component)


def slowing(at: int, by_us: float, *, steps: int = 100) -> StepTable:
    """Return steps of four ranks; from step ``at`` on rank 1 takes longer, and the others wait for it."""
    rng = np.random.default_rng(0)

    def record(rank: int, step: int) -> StepRecord:
        more = by_us if step >= at else 0.0
        waited = 0.0 if rank == 1 else more
        wall = 50_000 + more + float(rng.normal(0, 300))
        return StepRecord(
            step=step, start_unix_ns=1_790_000_000_000_000_000 + step * 10**8, wall_us=wall, phases_us=PhaseTimes(forward=wall),
            blocked_us=PhaseTimes(forward=waited),
        )  # fmt: skip

    return StepTable.from_records(0, {rank: [record(rank, step) for step in range(steps)] for rank in range(4)})


def test_a_change_is_told_with_its_step_its_size_its_rank_and_a_link(memory_runs: Any, analysis: Analysis, caller: Any) -> None:
    # Given a run whose rank 1 is slower from step 60 on
    memory_runs.put(msgspec.structs.replace(analysis, findings=[]), slowing(60, 20_000.0))
    # When the list of changes is made
    said = words(caller(create_app(memory_runs)).written("changes", "?rank=3"))
    # Then the change is listed, and its link shows the steps around it and keeps the selection
    assert re.search(r"the step takes 7\d(\.\d)? ms instead of (50|49\.\d) ms \(\+4\d%\): own time changed on rank 1", said), said
    assert "From step 60" in said
    assert "/run/run-1?rank=3&steps=20-99" in said


def test_a_run_that_does_not_change_says_so(memory_runs: Any, analysis: Analysis, caller: Any) -> None:
    memory_runs.put(msgspec.structs.replace(analysis, findings=[]), slowing(60, 0.0))
    assert "No lasting change of the step time by 5% or more" in words(caller(create_app(memory_runs)).written("changes"))


def test_findings_of_a_part_of_the_run_and_later_attempts_are_among_the_changes(
    memory_runs: Any, analysis: Analysis, caller: Any
) -> None:
    finding = msgspec.structs.replace(analysis.findings[0], steps=(10, 31), explained_by="thermal_throttling")
    memory_runs.put(msgspec.structs.replace(analysis, findings=[finding]), slowing(60, 0.0), attempts=2)
    said = words(caller(create_app(memory_runs)).written("changes"))
    assert "Steps 10 to 30" in said
    assert "Explained by thermal throttling." in said
    assert "attempt 2 begins" in said


def test_throughput_utilisation_and_memory_are_told_where_they_are_known(
    memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any
) -> None:
    memory_runs.put(msgspec.structs.replace(analysis, throughput=WORK, memory=MEMORY), table)
    said = words(caller(create_app(memory_runs)).written("facts"))
    assert "Samples 1,600/s" in said
    assert "Tokens" not in said, "samples are known"
    assert "40.0% of the bf16 peak of NVIDIA H100" in said
    assert "GPU memory left 20 GiB of 80 GiB, on rank 3, the fullest" in said


def test_what_is_not_known_of_throughput_and_memory_is_not_zero(memory_runs: Any, caller: Any) -> None:
    said = words(caller(create_app(memory_runs)).written("facts"))
    assert said.count("not known") == 3
    assert " 0" not in said


def test_advice_says_what_it_saves_at_most_and_how_to_check_it(
    memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any
) -> None:
    memory_runs.put(msgspec.structs.replace(analysis, advice=[ADVICE, ADVICE]), table)
    said = words(caller(create_app(memory_runs)).written("advice"))
    assert "Saves at most 26% of the step (8 ms)" in said
    assert re.search(r"26\.6% of the step is communication.*10%.*profiled steps", said)
    assert "share.exposed" not in said
    assert "To check: share of exposed communication must fall" in said
    # And the command that checks all of it is there once
    assert said.count("rankscope compare runs/bert NEW_RUN") == 2  # to read, and to copy


def test_every_figure_that_advice_rests_on_has_words() -> None:
    assert {condition.figure for row in TABLE for condition in row.when} <= FIGURES.keys()


def test_a_group_of_another_run_in_the_address_selects_nothing(
    memory_runs: Any, analysis: Analysis, table: StepTable, caller: Any
) -> None:
    rows = [
        CollectiveBandwidth(
            op="all_reduce", group=group, group_size=4, size_bucket_bytes=None, bytes=None, count=5, matched=5, transfer_us=100.0,
            transfer_p10_us=None, transfer_p90_us=None, wait_us=50.0, algorithm_gb_s=None, bus_gb_s=None, bus_p10_gb_s=None,
            bus_p90_gb_s=None, bus_at_least_gb_s=None, link=None, link_source=None, expected_gb_s=None,
            expected_unknown="the GPU is not known", share=None, bound_by=None,
        )
        for group in ("dp", "tp")
    ]  # fmt: skip
    found = msgspec.structs.replace(analysis.collectives, by_op=rows)
    memory_runs.put(msgspec.structs.replace(analysis, collectives=found), table)
    client = caller(create_app(memory_runs))
    for search, count in (("?group=tp", 1), ("?group=pp", 2), ("", 2)):
        assert len(client.drawn("collective-waits", search)["data"][0]["x"]) == count
    assert "the GPU is not known" in words(client.written("about-collectives"))


def test_a_job_on_cpus_has_no_row_for_gpu_memory(analysis: Analysis) -> None:
    on_cpus = msgspec.structs.replace(
        analysis, ranks=[msgspec.structs.replace(rank, device_kind="cpu") for rank in analysis.ranks]
    )

    assert "GPU memory left" in {fact.name for fact in work_and_memory(analysis)}
    assert "GPU memory left" not in {fact.name for fact in work_and_memory(on_cpus)}
