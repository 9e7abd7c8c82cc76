"""Real jobs in parallel layouts: waits, verdicts and coordinates of ranks. All layouts: `make campaign`."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import recorded_job

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Verdict
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase, Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parent / "jobs" / "parallel.py"
PAUSE_US = 40_000
STEPS = 30
PLAIN = ("--pause", "0.12")
"""Pause that exceeds the delays which ranks and other tests impose on each other, also on few cores."""


def skip_what_torch_cannot(layout: str) -> None:
    """Skip layouts that torch 2.6 cannot run: it raises in FSDP2 on the CPU, and waits only for the last of several transfers."""
    import torch
    from torch.distributed.pipelining import schedules

    if "fsdp2" in layout and not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this torch has no FSDP2 on the CPU")
    if layout.startswith("pp") and schedules._batch_p2p([]) is None:
        pytest.skip("this torch's pipelines hang on gloo")


def job(torch_ranks: PreloadedTorch, layout: str, ranks: int, *options: str) -> list[str]:
    """Return the command that trains."""
    skip_what_torch_cannot(layout)
    return torch_ranks.command(ranks, JOB, "--layout", layout, "--steps", str(STEPS), *options)


def recorded(run_dir: Path, command: list[str]) -> tuple[RunReader, Verdict]:
    """Record one job, and return its run and verdict."""
    assert recorded_job(command, run_dir).status == 0
    run = RunReader(run_dir)
    for rank in run.ranks(0):
        steps = list(run.steps(0, rank))
        assert len(steps) == STEPS
        for step in steps:
            assert step.blocked_us is not None, "every step has the signal"
            assert sum(step.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(step.wall_us, rel=1e-6)
            assert all(0 <= (step.blocked_us.get(phase) or 0) <= (step.phases_us.get(phase) or 0) for phase in PHASES)
    return run, analyze([run_dir]).verdict


def own(run: RunReader, rank: int, phase: Phase) -> float:
    """Return the median own time of a rank in a phase, in microseconds."""
    return statistics.median(
        (step.phases_us.get(phase) or 0) - (step.blocked_us.get(phase) or 0 if step.blocked_us else 0)
        for step in list(run.steps(0, rank))[3:]
    )


def places(run: RunReader) -> list[dict[str, int]]:
    """Return the coordinates of all ranks."""
    return [info.coordinates for rank in run.ranks(0) if (info := run.rank(0, rank)) is not None]


def layout_of(run: RunReader) -> dict[str, int]:
    """Return the layout of the attempt."""
    attempt = run.attempt(0)
    assert attempt is not None
    return attempt.layout


@pytest.mark.full
def test_tensor_parallel_waits_are_recorded_in_unchanged_compiled_graphs(
    torch_ranks: PreloadedTorch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = job(torch_ranks, "tp", 2, "--compile", "--fault", "backward:1", *PLAIN)
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    capfd.readouterr()
    run, verdict = recorded(tmp_path / "run", command)
    assert (verdict.kind, verdict.rank, verdict.phase) == ("straggler", 1, "backward"), verdict.summary
    assert (layout_of(run), places(run)) == ({"tp": 2}, [{"tp": 0}, {"tp": 1}])
    # Graphs, graph breaks and losses are the same as without the recorder
    out = capfd.readouterr().out
    assert "graphs" in out
    assert sorted(out.split()) == sorted(alone.split())


@pytest.mark.full
def test_fsdp_waits_are_recorded_with_mixed_precision_and_checkpointing(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    command = job(torch_ranks, "fsdp2", 2, "--amp", "--checkpointing", "--fault", "forward:0", *PLAIN)
    run, verdict = recorded(tmp_path / "run", command)
    assert (verdict.kind, verdict.rank, verdict.phase) == ("straggler", 0, "forward"), verdict.summary
    assert places(run) == [{"fsdp": 0}, {"fsdp": 1}]


@pytest.mark.full
def test_straggler_of_a_pipeline_is_found_within_its_stage(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    command = job(torch_ranks, "pp-1f1b+ddp", 4, "--fault", "backward:3", *PLAIN)
    run, verdict = recorded(tmp_path / "run", command)
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.stage) == ("straggler", 3, "backward", 1), verdict.summary
    assert list(layout_of(run).items()) == [("pp", 2), ("dp", 2)]
    assert places(run) == [{"pp": 0, "dp": 0}, {"pp": 0, "dp": 1}, {"pp": 1, "dp": 0}, {"pp": 1, "dp": 1}]


def test_pipeline_with_one_rank_per_stage_has_own_times_and_no_straggler(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run, verdict = recorded(tmp_path / "run", job(torch_ranks, "pp-interleaved", 2, "--fault", "forward:1"))
    assert own(run, 1, "forward") > 0.9 * PAUSE_US
    assert own(run, 0, "forward") < own(run, 1, "forward") - PAUSE_US / 2
    assert verdict.kind != "straggler"
    assert "very pipeline stage is on one rank" in verdict.summary
    about = run.attempt(0)
    assert about is not None
    assert about.pipeline == Pipeline(schedule="ScheduleInterleaved1F1B", microbatches=4, chunks=2)
