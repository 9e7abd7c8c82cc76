"""Breakdowns of profiled steps, whose parts add up to the window."""

from __future__ import annotations

from typing import Any

from rankscope.runs.records import StepBreakdown


def breakdown(
    step: int, *, compute: float = 0.0, exposed: float = 0.0, copies: float = 0.0, idle: float = 0.0, **fields: Any
) -> StepBreakdown:
    """Return the breakdown of a step on a GPU: times in microseconds, no communication under compute. ``fields``: all others."""
    times = {"compute_us": compute, "communication_us": exposed, "memcpy_us": copies, "overlap_us": 0.0}
    parts = {"window_us": compute + exposed + copies + idle, "exposed_communication_us": exposed, "exposed_memcpy_us": copies}
    usual: dict[str, Any] = {"start_unix_ns": 10**18, "device_kind": "cuda", "idle_us": idle, "events": 10, **times, **parts}
    return StepBreakdown(step=step, **(usual | fields))
