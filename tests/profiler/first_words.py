"""Hello message of a rank, and step records, for tests without a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope.profiler.handover import Handover
from rankscope.profiler.settings import RecorderSettings
from rankscope.runs.records import AttemptInfo, PhaseTimes, RankInfo, RunInfo, StepRecord


def hello(
    run_dir: Path,
    *,
    spool: Path | None = None,
    rank: int = 0,
    run_id: str = "run",
    pid: int = 1,
    world_size: int = 1,
    **settings: Any,
) -> Handover:
    """Return the first message that a rank sends to its helper."""
    return Handover(
        settings=RecorderSettings(
            run_dir=str(run_dir),
            run_id=run_id,
            name="test",
            start_unix_ns=1,
            spool_dir=None if spool is None else str(spool),
            exporter_url=None,
            **settings,
        ),
        run=RunInfo(run_id=run_id, name="test", start_unix_ns=1),
        attempt=AttemptInfo(attempt=0, start_unix_ns=1, world_size=world_size),
        rank=RankInfo(rank=rank, world_size=world_size, host="h", pid=pid, start_unix_ns=1),
    )


def step(number: int) -> StepRecord:
    """Return the record of a step."""
    return StepRecord(step=number, start_unix_ns=10**18, wall_us=1000.0, phases_us=PhaseTimes(forward=1000.0))
