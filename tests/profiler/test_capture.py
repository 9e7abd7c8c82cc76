"""`rankscope capture` on a real job: the ranks do what it requests, and it prints what they did."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.profiler.live_job import begin
from tests.waiting import wait_until

from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
RANKS = [0, 1]
PAUSE_S = 0.2
"""Far more than ranks lose to other processes on a busy machine."""


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_a_live_job_is_profiled_when_somebody_asks(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = begin(run, pause_s=PAUSE_S)
    try:
        for rank in RANKS:
            wait_until((rank_dir(run, 0, rank) / "steps-000000.npy").exists, process=job)
        # when six steps are requested
        completed = cli("capture", run, "--steps", "6", "--keep-trace", "--wait", "90", "--format", "json")
        # then all ranks have profiled those six, and the late rank in them is found
        assert completed.returncode == 0, completed.stdout + completed.stderr
        report = json.loads(completed.stdout)
        steps = range(report["first_step"], report["last_step"] + 1)
        assert len(steps) == 6
        assert (report["accepted"], report["ranks"], report["missing"]) == (True, RANKS, [])
        analysis = report["analysis"]
        assert [row["steps"] for row in analysis["ranks"]] == [6, 6]
        for row in analysis["ranks"]:
            parts = ("compute_us", "exposed_communication_us", "exposed_memcpy_us", "idle_us")
            assert sum(row[part] for part in parts) == pytest.approx(row["window_us"])
            assert row["communication_us"] > 0
            assert 0 <= row["overlap_ratio"] <= 1
        assert analysis["imposed_wait"][0]["rank"] == 1
        # at least one of the six pauses: a busy machine delays the other rank, too, which hides a part
        assert analysis["imposed_wait"][0]["imposed_us"] > PAUSE_S * 1e6
        for trace in report["traces"]:
            assert (run / trace).is_file()
        assert len(report["traces"]) == 2
        # and a dump does not end a job that trains
        before = len(list(RunReader(run).steps(0, 0)))
        dumps = cli("capture", run, "--flight-recorder", "--wait", "90", "--format", "json")
        assert {row["rank"] for row in json.loads(dumps.stdout)["dumps"]} | {
            row["rank"] for row in json.loads(dumps.stdout)["missing"]
        } == set(RANKS)
        wait_until(lambda: len(list(RunReader(run).steps(0, 0))) > before + 5, process=job, poll_s=0.2)
    finally:
        job.send_signal(signal.SIGTERM)
        _, output = job.communicate(timeout=120)
    assert "switched itself off" not in output
    # the run has those steps, marked, on all ranks, and none besides the window of its schedule
    reader = RunReader(run)
    for rank in RANKS:
        assert {row.step for row in reader.windows(0, rank)} == {3, *steps}
        assert {record.step for record in reader.steps(0, rank) if record.profiled} == {3, *steps}
