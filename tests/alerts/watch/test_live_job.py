"""The watch command beside a real job reports a rank that is stopped, and its recovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until
from tests.watched_job import QUICK, WatchProcess, training

from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.watch.ledger import load_ledger
from rankscope.alerts.watch.liveness.dumps import WAIT_S
from rankscope.runs.reader import RunReader


def alive(state: Path) -> list[str]:
    """Return the runs that the watcher has seen making steps."""
    with AlertStore(state) as store:
        return load_ledger(store).active


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_a_stopped_rank_is_named_and_its_recovery_is_reported(tmp_path: Path) -> None:
    # Given a job of two ranks, and a watcher with little patience
    run, stop, state = tmp_path / "run", tmp_path / "stop", tmp_path / "state"
    with training(run, stop, 2) as job:
        wait_until(lambda: len(list(run.glob("attempts/000/ranks/*/steps-*"))) == 2, timeout=120)
        with WatchProcess(run, "--state", state, *QUICK) as watch:
            wait_until(lambda: alive(state), timeout=120)
            info = RunReader(run).rank(0, 1)
            assert info is not None
            # When one of them is stopped, as by a debugger or a host that is out of memory
            os.kill(info.pid, signal.SIGSTOP)
            try:
                # No dump of a stopped process is waited for.
                wait_until(lambda: watch.of("TrainingHang"), timeout=WAIT_S)
            finally:
                os.kill(info.pid, signal.SIGCONT)
            # Then the hang is reported, with the rank that the other one waits for if torch's dumps show it
            [fired] = watch.of("TrainingHang")
            assert fired["event"] == "firing"
            assert "rank" not in fired["labels"]
            assert fired["annotations"].get("culprit", "1") == "1"
            # And the alert ends when the rank continues
            wait_until(lambda: [event["event"] for event in watch.of("TrainingHang")] == ["firing", "resolved"])
            stop.touch()
            assert job.wait(60) == 0
            assert watch.process.wait(60) == 0
    # Steps of 20 ms may become longer on a busy machine.
    assert watch.fired() - {"TrainingStepRegression"} == {"TrainingHang"}


ENDS_LATER = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(150):
    model(torch.rand(2, 4)).sum().backward()
    time.sleep(0.02)
    optimizer.step()
dist.barrier()
if dist.get_rank() == 0:
    time.sleep(float(sys.argv[2]))
elif sys.argv[1] == "swallows":
    try:
        raise RuntimeError("planted")
    except RuntimeError:
        sys.exit(1)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize(("how", "fired"), [("os._exit", set()), ("swallows", {"TrainingCrashed"})])
def test_rank_that_ends_early_pages_only_after_a_failure(tmp_path: Path, how: str, fired: set[str]) -> None:
    # Given a job whose rank 1 ends with os._exit(0) while rank 0 still writes, or with sys.exit(1) in an except block
    run, script = tmp_path / "run", tmp_path / "job.py"
    script.write_text(ENDS_LATER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), how, "8"]
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--window-steps", "0", "--no-verdict", "--"]
    with subprocess.Popen([*command, *torchrun], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        wait_until(lambda: len(list(run.glob("attempts/000/ranks/*/steps-*"))) == 2, timeout=120)
        quick = ["60s" if option == "5s" else option for option in QUICK]
        with WatchProcess(run, "--state", tmp_path / "state", *quick) as watch:
            assert job.wait(120) == len(fired)
            wait_until(lambda: watch.process.poll() is not None, timeout=120)
    # Then only the failure is reported, as the end of the run
    assert watch.fired() - {"TrainingStepRegression"} == fired
    info = RunReader(run).rank(0, 1)
    assert info is not None
    assert info.end_reason == ("crash" if fired else "exit")
