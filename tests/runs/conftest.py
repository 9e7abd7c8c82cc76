"""A run, and the lines that are reported about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.control_requests import Reports

from rankscope.runs.control import make_control_dir
from rankscope.runs.records import AttemptInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    create_run(path, RunInfo(run_id="r1", name="test", start_unix_ns=1))
    create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=1, world_size=2))
    make_control_dir(path)
    return path


@pytest.fixture
def reports() -> Reports:
    return Reports()
