"""The command beside a real job: a rank that is stopped is found, and named, and its recovery is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.alerts.state import load_ledger
from rankscope.runs.reader import RunReader

JOB = Path(__file__).parents[1] / "profiler" / "jobs" / "until_told.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


class Watch:
    """The command, and what it has said so far."""

    def __init__(self, path: Path, *options: str | Path) -> None:
        command = [sys.executable, "-m", "rankscope", "alerts", "watch", path, "--format", "json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.events.extend(msgspec.json.decode(line) for line in lines)

    def of(self, name: str) -> list[dict[str, Any]]:
        """What it has said about one alert."""
        assert self.process.poll() is None
        return [event for event in self.events if event.get("labels", {}).get("alertname") == name]

    def end(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._listening.join()


@contextmanager
def training(run: Path, stop: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A job of so many ranks that goes on until it is told to stop."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(JOB)]
    told = ["run", "--run-dir", str(run), "--window-steps", "0", "--no-verdict", "--", *torchrun, str(stop), "--pause", "0.02"]
    job = subprocess.Popen([sys.executable, "-m", "rankscope", *told], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield job
    finally:
        stop.touch()
        try:
            job.wait(60)
        finally:
            job.kill()
            job.wait()


def test_a_rank_that_is_stopped_is_found_and_named_and_its_recovery_is_seen(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a job of two ranks, and somebody who watches with little patience
    run, stop = tmp_path / "run", tmp_path / "stop"
    with training(run, stop, 2) as job:
        eventually(lambda: len(list(run.glob("attempts/000/ranks/*/steps-*"))) == 2, timeout=120)
        watch = Watch(
            run, "--state", tmp_path / "state.json", "--interval", "500ms", "--fire-after", "2", "--resolve-after", "2",
            "--silent-after", "5s", "--silent-steps", "5", "--least-firing", "1s", "--budget", "host=100%",
        )  # fmt: skip
        try:
            eventually(lambda: load_ledger(tmp_path / "state.json", report=pytest.fail).alive, timeout=120)
            info = RunReader(run).rank(0, 1)
            assert info is not None
            # When one of them is stopped, as by a debugger or a host that is out of memory
            os.kill(info.pid, signal.SIGSTOP)
            try:
                eventually(lambda: watch.of("TrainingStalled"), timeout=120)
            finally:
                os.kill(info.pid, signal.SIGCONT)
            # Then both stand still, and it is said which of them the other waits for, if torch can tell
            [fired] = watch.of("TrainingStalled")
            assert fired["event"] == "firing"
            assert "rank" not in fired["labels"]
            assert fired["annotations"].get("culprit", "1") == "1"
            # And when it goes on, that is over
            eventually(lambda: [event["event"] for event in watch.of("TrainingStalled")] == ["firing", "resolved"])
            stop.touch()
            assert job.wait(60) == 0
            assert watch.end() == 0
        finally:
            watch.process.kill()
            watch.end()
    assert {event["labels"]["alertname"] for event in watch.events if event["event"] == "firing"} == {"TrainingStalled"}
