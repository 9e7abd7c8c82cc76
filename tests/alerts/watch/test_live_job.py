"""The watch command beside a real job reports a rank that is stopped, and its recovery."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.watched_job import QUICK, Watch, training

from rankscope.alerts.store.database import Store
from rankscope.alerts.watch.ledger import load_ledger
from rankscope.runs.reader import RunReader


def alive(state: Path) -> list[str]:
    """Return the runs that the watcher has seen making steps."""
    with Store(state) as store:
        return load_ledger(store).active


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_a_rank_that_is_stopped_is_found_and_named_and_its_recovery_is_seen(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a job of two ranks, and a watcher with little patience
    run, stop, state = tmp_path / "run", tmp_path / "stop", tmp_path / "state"
    with training(run, stop, 2) as job:
        eventually(lambda: len(list(run.glob("attempts/000/ranks/*/steps-*"))) == 2, timeout=120)
        with Watch(run, "--state", state, *QUICK) as watch:
            eventually(lambda: alive(state), timeout=120)
            info = RunReader(run).rank(0, 1)
            assert info is not None
            # When one of them is stopped, as by a debugger or a host that is out of memory
            os.kill(info.pid, signal.SIGSTOP)
            try:
                eventually(lambda: watch.of("TrainingHang"), timeout=120)
            finally:
                os.kill(info.pid, signal.SIGCONT)
            # Then the hang is reported, with the rank that the other one waits for if torch's dumps show it
            [fired] = watch.of("TrainingHang")
            assert fired["event"] == "firing"
            assert "rank" not in fired["labels"]
            assert fired["annotations"].get("culprit", "1") == "1"
            # And the alert ends when the rank continues
            eventually(lambda: [event["event"] for event in watch.of("TrainingHang")] == ["firing", "resolved"])
            stop.touch()
            assert job.wait(60) == 0
            assert watch.process.wait(60) == 0
    # Steps of 20 ms may become longer on a busy machine.
    assert watch.fired() - {"TrainingStepRegression"} == {"TrainingHang"}
