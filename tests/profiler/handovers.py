"""Handover of a rank, context of its helper's tasks, step records and plan lines, for tests without a rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rankscope.profiler.handover import Handover
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.profiler.settings import RecorderSettings
from rankscope.runs.records import AttemptInfo, PhaseTimes, PlannedWindow, RankInfo, RunInfo, StepRecord


def handover_of(
    run_dir: Path,
    *,
    spool: Path | None = None,
    run_id: str = "run",
    backend: str | None = None,
    settings: dict[str, Any] | None = None,
    **info: Any,
) -> Handover:
    """Return what a rank hands to its helper. ``info``: fields of its ``RankInfo``."""
    usual: dict[str, Any] = {"rank": 0, "world_size": 1, "host": "h", "pid": 1, "start_unix_ns": 1}
    rank = RankInfo(**usual | info)
    values: dict[str, Any] = {"exporter_url": None, "spool_dir": None if spool is None else str(spool), **(settings or {})}
    return Handover(
        settings=RecorderSettings(run_dir=str(run_dir), run_id=run_id, name="test", start_unix_ns=1, **values),
        run=RunInfo(run_id=run_id, name="test", start_unix_ns=1),
        attempt=AttemptInfo(attempt=rank.attempt, start_unix_ns=1, world_size=rank.world_size, backend=backend),
        rank=rank,
    )


def context_of(handover: Handover, scratch: Path, report: Callable[[str], None], **more: Any) -> HelperContext:
    """Return the context of the tasks of a rank's helper. ``more``: fields that differ from those of a rank that has begun."""
    usual: dict[str, Any] = {
        "run": lambda: handover.run,
        "info": lambda: handover.rank,
        "begun": lambda: True,
        "baseline": StepTimeBaseline(),
    }
    return HelperContext(handover=handover, scratch=scratch, report=report, **usual | more)


def step(number: int) -> StepRecord:
    """Return the record of a step."""
    return StepRecord(step=number, start_unix_ns=10**18, wall_us=1000.0, phases_us=PhaseTimes(forward=1000.0))


def plan_line(first: int, steps: int = 2) -> bytes:
    """Return a line of the plan of windows."""
    return msgspec.json.encode(PlannedWindow(first=first, steps=steps, reason="schedule", chosen_unix_ns=1)) + b"\n"
