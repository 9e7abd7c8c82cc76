"""Jobs that tests record, and what is recorded of their ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.profiler.launch import LaunchOptions, LaunchResult, launch
from rankscope.profiler.settings import SITE_FOLDER, RecorderSettings
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo


def recorded_job(command: Sequence[str], run_dir: Path, **options: Any) -> LaunchResult:
    """Record a job as ``rankscope run`` does, without windows and GPUs unless ``options`` say so."""
    usual: dict[str, Any] = {"run_dir": run_dir, "name": "job", "window_steps": 0, "exporter_url": None}
    return launch(command, LaunchOptions(**usual | options))


def attached_environment(run_dir: Path, **options: Any) -> dict[str, str]:
    """Return the environment in which Python is recorded into ``run_dir`` without a launcher."""
    usual: dict[str, Any] = {"run_id": "r", "name": "r", "start_unix_ns": time.time_ns(), "exporter_url": None}
    settings = RecorderSettings(run_dir=str(run_dir), **usual | options)
    path = os.pathsep.join(filter(None, (str(SITE_FOLDER), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **settings.environment(), "PYTHONPATH": path, "KINETO_LOG_LEVEL": "6"}


def info_of(run: Path | RunReader, rank: int = 0, attempt: int = 0) -> RankInfo:
    """Return what a run has of a rank."""
    reader = run if isinstance(run, RunReader) else RunReader(run)
    info = reader.rank(attempt, rank)
    assert info is not None
    return info
