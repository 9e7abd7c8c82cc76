"""Jobs whose ranks do not all do the same steps, or communicate without torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.analysis.engine import analyze
from rankscope.analysis.online import OnlineAnalysis
from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

JOB = Path(__file__).parent / "jobs" / "uneven.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


def options(run: Path) -> LaunchOptions:
    return LaunchOptions(run_dir=run, name="uneven", window_first=60, window_every=0, window_steps=3, exporter_url=None)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "more"), [("extra", 4), ("join", 12), ("even", 0), ("pause", 0)])
def test_steps_of_the_same_time_are_compared(case: str, more: int, torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert launch(torch_ranks.command(2, JOB, case), options(run)).status == 0
    counts = [RunReader(run).step_count(0, rank) for rank in (0, 1)]
    assert counts[1] - counts[0] == more
    result = analyze([run])
    assert (result.verdict.kind, result.verdict.rank) == ("straggler", 1)
    about = [warning for warning in result.source.warnings if "number of steps" in warning or "cannot be compared" in warning]
    assert len(about) == (more > 0)
    assert result.source.steps <= counts[0] + (case == "join") * more
    # Two of the three profiled steps at most are of the same time, and collectives of other times are no instance.
    assert (result.collectives.unmatched == 0) == (more == 0)
    assert OnlineAnalysis(run).update() == result


@pytest.mark.full
def test_ranks_without_torch_distributed_are_not_said_to_wait_for_none(tmp_path: Path) -> None:
    variables = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank"
    command = f"for rank in 0 1; do {variables} {sys.executable} {JOB} alone & done; wait"
    verdict = analyze([record(tmp_path / "run", ["bash", "-c", command])]).verdict
    infos = RunReader(tmp_path / "run").infos(0)
    assert [(info.world_size, info.process_group) for info in infos.values()] == [(2, False), (2, False)]
    assert verdict.kind == "insufficient_data"
    assert "torch.distributed" in verdict.summary
    assert any("init_process_group" in action for action in verdict.next)


@pytest.mark.full
def test_processes_that_share_a_model_are_not_said_to_be_alone(tmp_path: Path) -> None:
    verdict = analyze([record(tmp_path / "run", [sys.executable, str(JOB), "hogwild"])]).verdict
    info = RunReader(tmp_path / "run").infos(0)[0]
    assert (info.world_size, info.process_group, info.shared_parameters) == (1, False, True)
    assert verdict.kind == "insufficient_data"
    assert "shares its model" in verdict.summary


def test_one_process_is_alone(tmp_path: Path) -> None:
    run = record(tmp_path / "run", [sys.executable, str(JOB), "alone"])
    assert RunReader(run).infos(0)[0].shared_parameters is False
    assert "one rank" in analyze([run]).verdict.summary


def record(run: Path, command: list[str]) -> Path:
    launcher = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--no-hardware", "--", *command]
    completed = subprocess.run(
        launcher, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return run
