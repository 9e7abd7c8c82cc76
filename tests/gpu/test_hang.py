"""Hung NCCL jobs: NCCL's own service for diagnosis (RAS), and dumps of its Flight Recorder."""

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
from tests.command_line import Cli
from tests.flight_dump_files import last_collective
from tests.waiting import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("gpu_count", "require_torch")]


JOB = Path(__file__).parents[1] / "profiler" / "jobs" / "hung.py"


@pytest.mark.timeout(600)
def test_absent_rank_is_named_while_the_others_wait(cli_process: Cli, free_port: Callable[[], int], tmp_path: Path) -> None:
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


def launch(run: Path, ranks: int, *args: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(JOB)]
    recorded = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--window-steps", "0", "--no-verdict", "--"]
    return subprocess.Popen([*recorded, *torchrun, "--backend", "nccl", *args], stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(600)
def test_nccl_flight_recorder_is_dumped_on_request(cli_process: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = launch(run, 1)
    try:
        wait_until(lambda: list(run.glob("attempts/000/ranks/00000/steps-*")), timeout=300, process=job)
        done = cli_process("capture", run, "--flight-recorder", "--format", "json", "--wait", "60")
        assert done.returncode == 0, done.stdout + done.stderr
        (dump,) = json.loads(done.stdout)["dumps"]
        assert dump["path"].endswith(("-nccl.pickle", "-nccl2.pickle")), "torch has had two implementations"
        assert last_collective(run / dump["path"]) > 0
    finally:
        job.terminate()
        job.communicate(timeout=120)


@pytest.mark.timeout(600)
def test_nccl_watchdog_dumps_are_kept_in_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = launch(run, 2, "--timeout", "20")
    _, output = job.communicate(timeout=500)
    assert job.returncode != 0
    assert "switched itself off" not in output
    dumps = {path.name: last_collective(path) for path in run.glob("attempts/000/flight/*.pickle")}
    # The victim is ahead of the origin by the collectives of both parameters: its host does not wait between them.
    assert dumps["rank-00000-watchdog-nccl.pickle"] == dumps["rank-00001-watchdog-nccl.pickle"] + 2
