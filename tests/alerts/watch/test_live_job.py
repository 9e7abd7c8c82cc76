"""The command beside a real job: a rank that is stopped is found, and named, and its recovery is seen."""

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
    """Runs that the watcher has seen making steps."""
    with Store(state) as store:
        return load_ledger(store).active


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_a_rank_that_is_stopped_is_found_and_named_and_its_recovery_is_seen(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a job of two ranks, and somebody who watches with little patience
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
            # Then both stand still, and it is said which of them the other waits for, if torch can tell
            [fired] = watch.of("TrainingHang")
            assert fired["event"] == "firing"
            assert "rank" not in fired["labels"]
            assert fired["annotations"].get("culprit", "1") == "1"
            # And when it goes on, that is over
            eventually(lambda: [event["event"] for event in watch.of("TrainingHang")] == ["firing", "resolved"])
            stop.touch()
            assert job.wait(60) == 0
            assert watch.process.wait(60) == 0
    # That steps of 20 ms take longer when the machine has more to do is true, and another matter.
    assert watch.fired() - {"TrainingStepRegression"} == {"TrainingHang"}
