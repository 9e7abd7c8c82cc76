"""Results of training, which the recorder must not change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parent / "jobs" / "digests.py"
BATCHES = 80


@pytest.mark.parametrize("accumulated", [pytest.param(1, marks=pytest.mark.full), 4])
def test_recorded_training_computes_the_same_bits(
    torch_ranks: PreloadedTorch, tmp_path: Path, capfd: pytest.CaptureFixture[str], accumulated: int
) -> None:
    command = torch_ranks.command(2, JOB, str(accumulated))
    options = LaunchOptions(run_dir=tmp_path / "run", name="digests", window_first=5, exporter_url=None)
    assert launch(command, options).status == 0
    recorded = capfd.readouterr()
    assert "switched itself off" not in recorded.err
    run = RunReader(tmp_path / "run")
    assert [len(list(run.steps(0, rank))) for rank in (0, 1)] == [BATCHES // accumulated] * 2
    unrecorded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert sorted(recorded.out.splitlines()) == sorted(unrecorded.splitlines())
    assert len(unrecorded.splitlines()) == 2
