"""Job that trains until it is ended, for tests of requests to a live run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.profiler import ranks
from tests.profiler.recorded_runs import attached_environment

JOB = Path(__file__).parent / "jobs" / "tiny_ddp.py"


def begin(run: Path, *, pause_s: float = 0.03) -> subprocess.Popen[str]:
    """Start two ranks that train until they are ended; rank 1's backward takes ``pause_s`` longer in every step."""
    environment = attached_environment(
        run,
        window_first=3,
        window_steps=1,
        window_every=100_000,
        plan_ahead_seconds=9.0,  # a third of it, because the ranks are on one host
        plan_ahead_steps=10,
    )
    command = ranks.command(2, JOB, "--steps", "90000", "--fault", "backward:1", "--pause", str(pause_s))
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
