"""Number of Python functions that the recorder runs in a step: each costs about as much as the work it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parents[1] / "jobs" / "frames.py"


@pytest.mark.parametrize(("where", "most"), [("host", 24), ("device", 90)])
def test_a_usual_step_runs_few_functions_of_the_recorder(tmp_path: Path, where: str, most: int) -> None:
    command = [sys.executable, str(JOB), str(tmp_path / "run"), where]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert job.returncode == 0, job.stderr
    assert float(job.stdout.split()[0]) <= most, job.stdout
