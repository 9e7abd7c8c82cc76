"""Real job that runs until it is stopped, and `rankscope alerts watch` beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

JOB = Path(__file__).parent / "profiler" / "jobs" / "trains_until_stopped.py"
QUICK = (
    "--interval", "500ms", "--fire-after", "2", "--resolve-after", "2",
    "--silent-after", "5s", "--silent-steps", "5", "--least-firing", "1s",
    "--budget", "host=100%", "--budget", "communication=100%",
)  # fmt: skip
"""Short intervals and raised budgets: the job sleeps in every step, and on a busy machine its ranks wait for one another."""
AT_ONCE = ("--interval", "100ms", "--fire-after", "1")


class WatchProcess:
    """Running command, and its events so far."""

    def __init__(self, path: Path, *options: str | Path) -> None:
        command = [sys.executable, "-m", "rankscope", "alerts", "watch", path, "--format", "json", *options]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        self._all_errors = ""
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self.events: list[dict[str, Any]] = []
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.events.extend(msgspec.json.decode(line) for line in lines)

    def errors(self) -> str:
        """Return what it has written to standard error."""
        return self._all_errors or os.pread(self._errors.fileno(), 2**20, 0).decode()

    def warnings(self) -> list[str]:
        """Return the lines on standard error that are not of level info."""
        return [line for line in self.errors().splitlines() if "level=info" not in line]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the events of one alert."""
        return [event for event in self.events if event.get("labels", {}).get("alertname") == name]

    def fired(self) -> set[str]:
        """Return the names of all alerts that have fired."""
        return {event["labels"]["alertname"] for event in self.events if event["event"] == "firing"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._listening.join()
        with self._errors:
            self._all_errors = self.errors()
        print(self._all_errors)


@contextmanager
def training(run: Path, stop: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job of ``ranks`` ranks until it is stopped."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(JOB)]
    command = ["run", "--run-dir", str(run), "--window-steps", "0", "--no-verdict", "--", *torchrun, str(stop), "--pause", "0.02"]
    job = subprocess.Popen([sys.executable, "-m", "rankscope", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield job
    finally:
        stop.touch()
        try:
            job.wait(60)
        finally:
            job.kill()
            job.wait()
