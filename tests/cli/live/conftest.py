"""A run of two simulated ranks, and the capture command with short waits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Cli
from tests.played_ranks import Serve, job, two_ranks

from rankscope.cli.live import capture_request, live_run
from rankscope.runs.control import ControlRequest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run of two ranks that train."""
    return two_ranks(tmp_path / "run")


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command in this process, with short waits."""
    monkeypatch.setattr(capture_request, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    return cli


class Ask:
    """Function that runs ``capture`` on the run, whose job serves its requests, and returns the result with its report."""

    def __init__(self, run: Path, cli: Cli) -> None:
        self._run, self._cli = run, cli
        self.requests: list[ControlRequest] = []

    def __call__(self, serve: Serve, *options: str) -> tuple[subprocess.CompletedProcess[str], Any]:
        with job(self._run, serve) as self.requests:
            completed = self._cli("capture", self._run, "--wait", "1000", "--format", "json", *options)
        return completed, json.loads(completed.stdout)


@pytest.fixture
def ask(run: Path, cli: Cli) -> Ask:
    return Ask(run, cli)
