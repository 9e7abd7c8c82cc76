"""Runs whose step records do not know own times: durations of collectives name the rank. Jobs are simulated NCCL jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.analysis.conftest import SyntheticRun
from tests.nccl.faults import FAULTS
from tests.nccl.layouts import LAYOUTS, LayoutJob
from tests.nccl.runs import dumped, logged, write_run
from tests.nccl.traces import BASE_NS
from tests.step_files import append

from rankscope.analysis.engine import analyze
from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.runs.durations import DurationBlock, DurationSource
from rankscope.runs.paths import rank_dir

pytestmark = pytest.mark.slow

STEPS = 32
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, synthetic: Callable[..., SyntheticRun]) -> Write:
    """Return a function from layout, fault and source to a run whose steps are at the times of the job's hosts."""

    def make(
        layout: str,
        fault: str,
        source: DurationSource = "nccl_inspector",
        *,
        verbose: bool = True,
        change: Callable[[int, DurationBlock], DurationBlock] = lambda _rank, block: block,
        gc_us: Callable[[int], float] = lambda _rank: 0.0,
        first: int = 100,
    ) -> Path:
        job = LayoutJob(LAYOUTS[layout], FAULTS[fault], steps=STEPS)

        def times(rank: int, step: int) -> dict[str, Any]:
            note = next(note for note in job.ranks[rank].notes if note.name == f"ProfilerStep#{step}")
            return {
                "step": first + step,
                "start_unix_ns": BASE_NS + round(1000 * note.start_us),
                "wall_us": note.end_us - note.start_us,
                "gc_us": gc_us(rank),
            }

        run = synthetic(ranks=job.world, steps=STEPS, signals=False, fields=times).write()
        folder = tmp_path / "source"
        blocks = logged(job, folder, verbose=verbose) if source == "nccl_inspector" else dumped(job, folder)
        for rank, rows in enumerate(blocks):
            append(rank_dir(run, 0, rank), "durations", *(change(rank, row) for row in rows))
        return run

    return make


def online(run: Path) -> Analysis:
    return OnlineAnalysis(run).update()


def test_waits_of_minutes_in_slow_steps_count_like_others(write: Write) -> None:
    def paused(_rank: int, block: DurationBlock) -> DurationBlock:
        middle = len(block.group) // 2
        took_us = [us if at != middle else 600e6 for at, us in enumerate(block.duration_us)]
        return msgspec.structs.replace(block, duration_us=took_us)

    verdict = analyze([write("tp x dp", "slow device", "flight_recorder", change=paused, first=10**8)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.evidence_source) == ("straggler", [3], "flight_recorder"), verdict.summary


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", ["nccl_inspector", "flight_recorder"])
@pytest.mark.parametrize("layout", ["fsdp", "tp", "tp x dp"])
def test_durations_name_the_slow_rank_of_a_run_without_own_times(write: Write, layout: str, source: DurationSource) -> None:
    # given a run of a job in which rank 3 is slow, of whose waits no step record tells
    run = write(layout, "slow device", source)
    for analysis in (analyze([run]), online(run)):
        verdict = analysis.verdict
        # then the durations name it, with the steps of the run
        assert (verdict.kind, verdict.ranks, verdict.evidence_source) == ("straggler", [3], source), verdict.summary
        assert verdict.steps is not None
        assert 100 <= verdict.steps[0] < verdict.steps[1] <= 100 + STEPS
        assert verdict.confidence is not None
        assert (analysis.source.kind, analysis.imposed_wait[0].rank, analysis.imposed_wait_source) == ("run", 3, source)
        assert analysis.ledger is not None
        assert analysis.ledger.source == source
        # and the answer says what it rests on
        output = next(warning for warning in analysis.source.warnings if "own times" in warning)
        assert "8 of 8 ranks" in output
        assert "of 32 steps" in output
        evidence = {row.name: row.value for row in analysis.findings[0].evidence}
        assert evidence["steps_judged"] >= 24
        assert evidence["communication_matched"] > 0.9
    assert "rank 3" in render_text(analyze([run]), width=200, color=False).lower()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("source", "layout", "fault", "named"),
    [
        ("nccl_inspector", "pp", "slow device", [3]),
        ("nccl_inspector", "pp interleaved", "slow device", [3]),
        ("flight_recorder", "pp", "slow device", [3]),
        ("flight_recorder", "pp", "none", []),
        ("flight_recorder", "tp", "none", []),
    ],
)
def test_pipelines_are_judged_by_operations(
    write: Write, source: DurationSource, layout: str, fault: str, named: list[int]
) -> None:
    verdict = analyze([write(layout, fault, source)]).verdict
    assert (verdict.ranks, verdict.evidence_source) == (named, source), verdict.summary


def test_steps_are_inferred_without_host_times(write: Write) -> None:
    analysis = analyze([write("tp", "slow device", verbose=False)])
    assert analysis.verdict.ranks == [3]
    assert any("inferred" in warning for warning in analysis.source.warnings)


def test_cause_comes_from_the_step_records(write: Write) -> None:
    verdict = analyze([write("tp", "pause of the host", gc_us=lambda rank: 12_000.0 if rank == 3 else 0.0)]).verdict
    assert (verdict.ranks, verdict.cause) == ([3], "gc"), verdict.summary


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fault", ["slow device", "late input"])
@pytest.mark.parametrize("layout", ["ddp", "tp x dp", "pp x tp"])
def test_run_names_the_slow_rank_by_whichever_evidence_exists(tmp_path: Path, layout: str, fault: str) -> None:
    analysis = analyze([write_run(LayoutJob(LAYOUTS[layout], FAULTS[fault], late=1, steps=STEPS), tmp_path / "run")])
    verdict = analysis.verdict
    assert verdict.ranks == [1], verdict.summary
    assert verdict.evidence_source == ("steps" if layout == "ddp" else "flight_recorder")
    # without a profiled step nothing shows whether the device or its host is slow
    assert verdict.cause == ("input" if fault == "late input" else "unknown"), verdict.summary
    # a host that takes longer than its device for a step has its last operations in it, too
    judged = next(row.value for row in analysis.findings[0].evidence if row.name == "steps_judged")
    assert layout == "ddp" or judged == STEPS - 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["more tokens", "checkpoint of one rank"])
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_cause_shown_by_step_records_needs_no_profiled_step(tmp_path: Path, layout: str, fault: str) -> None:
    verdict = analyze([write_run(LayoutJob(LAYOUTS[layout], FAULTS[fault], steps=STEPS), tmp_path / "run")]).verdict
    assert (verdict.ranks, verdict.cause) == ([3], FAULTS[fault].cause), verdict.summary


def test_waiting_host_of_an_unprofiled_device_has_unknown_cause(write: Write) -> None:
    verdict = analyze([write("tp", "slow device")]).verdict
    assert (verdict.ranks, verdict.cause) == ([3], "unknown"), verdict.summary
    assert any("rankscope capture" in action for action in verdict.next)


def test_lost_and_missing_records_are_reported(write: Write) -> None:
    def change(rank: int, block: DurationBlock) -> DurationBlock:
        if rank == 5:
            return DurationBlock(source="nccl_inspector", start_unix_ns=1, end_unix_ns=1, missing="no log of it appeared")
        return msgspec.structs.replace(block, lost=7)

    analysis = analyze([write("tp", "slow device", change=change)])
    output = " ".join(analysis.source.warnings)
    assert "rank 5: no log of it appeared" in output
    assert "overwritten" in output
    assert analysis.verdict.kind == "insufficient_data"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "broken",
    [
        {"group": [7] * 10},
        {"op": []},
        {"issued_us": [10**18] * 10},
        {"ended_us": [None] * 10, "issued_us": [None] * 10},
        {"number": [-1] * 10},
        {"size": [2**60] * 10, "duration_us": [1e300] * 10},
    ],
)
def test_absurd_duration_blocks_cost_only_themselves(write: Write, broken: dict[str, Any]) -> None:
    def change(rank: int, block: DurationBlock) -> DurationBlock:
        return msgspec.structs.replace(block, **broken) if rank == 2 else block

    for analysis in (analyze([run := write("tp", "slow device", change=change)]), online(run)):
        assert analysis.verdict.kind == "insufficient_data" or analysis.verdict.ranks == [3], analysis.verdict.summary


@pytest.mark.parametrize("source", ["nccl_inspector", "flight_recorder"])
def test_ranks_are_compared_over_their_common_time(write: Write, source: DurationSource) -> None:
    def change(rank: int, block: DurationBlock) -> DurationBlock:
        ahead = len(block.group) * ((3 - rank) % 4) // 8
        columns = ("group", "op", "number", "size", "issued_us", "ended_us", "duration_us", "flags")
        return msgspec.structs.replace(block, **{name: getattr(block, name)[ahead:] for name in columns})

    analysis = analyze([write("tp", "slow device", source, change=change)])
    assert analysis.verdict.ranks == [3], analysis.verdict.summary
    assert analysis.verdict.evidence_source == source


def test_own_times_of_step_records_take_precedence(write: Write, synthetic: Callable[..., SyntheticRun], tmp_path: Path) -> None:
    run = write("tp", "slow device")
    other = synthetic("other", ranks=8, steps=STEPS).write()
    for rank in range(8):
        source = rank_dir(run, 0, rank) / "durations-000000.jsonl"
        (rank_dir(other, 0, rank) / source.name).write_bytes(source.read_bytes())
    verdict = analyze([other]).verdict
    assert (verdict.evidence_source, verdict.ranks) == ("steps", [])


def test_duration_block_takes_few_bytes_per_operation(write: Write) -> None:
    run = write("tp", "slow device")
    file = rank_dir(run, 0, 0) / "durations-000000.jsonl"
    blocks = [msgspec.json.decode(line, type=DurationBlock) for line in file.read_bytes().splitlines()]
    assert file.stat().st_size < 45 * sum(len(block.group) for block in blocks)
