"""A hung NCCL job: while it hangs, NCCL's own service for diagnosis (RAS) says which rank is behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
JOB = Path(__file__).parents[1] / "profiler" / "jobs" / "hung.py"

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("gpu_count", "require_torch")]


@pytest.mark.timeout(600)
def test_a_rank_that_never_comes_is_named_while_the_others_wait(
    cli_process: Cli, free_port: Callable[[], int], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
    recorded = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--window-steps", "0", "--no-verdict", "--"]
    # A port of its own: of the NCCL jobs on a host, the first one has the usual port.
    address = f"localhost:{free_port()}"
    environment = {**os.environ, "NCCL_RAS_ADDR": address}
    job = subprocess.Popen([*recorded, *torchrun, "--backend", "nccl"], start_new_session=True, env=environment)
    try:
        deadline = time.monotonic() + 300
        report: dict[str, Any] = {"kind": None}
        while report["kind"] != "hang" and time.monotonic() < deadline and job.poll() is None:
            time.sleep(1)
            said = cli_process("hang", run, "--ras", address, "--format", "json").stdout
            report = json.loads(said) if said else report
        assert (report["kind"], report["cause"], report["culprits"]) == ("hang", "not_arrived", [1]), report
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            job.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
