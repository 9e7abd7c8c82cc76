"""A hung NCCL job: while it hangs, NCCL's own service for diagnosis (RAS) says which rank is behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

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
        reports: list[dict[str, Any]] = []

        def hanging() -> bool:
            output = cli_process("hang", run, "--ras", address, "--format", "json").stdout
            reports.extend([json.loads(output)] if output else [])
            return bool(reports) and reports[-1]["kind"] == "hang"

        wait_until(hanging, timeout=300, process=job, poll_s=1, details=lambda: reports[-1:])
        assert (reports[-1]["cause"], reports[-1]["culprits"]) == ("not_arrived", [1]), reports[-1]
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            job.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
