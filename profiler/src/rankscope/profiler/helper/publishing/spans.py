"""What the spans of a step are: the trace of all ranks, attributes, and the stretches of phases that become children. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from heapq import nlargest
from typing import Final

from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import PHASES, RankInfo, RunInfo, StepRecord

AttributeValue = str | bool | int | float | list[str]

STEP: Final = "step"
MAX_CHILDREN: Final = 128
"""Largest number of children of a step: the SDK's queue holds 2048 spans by default, and drops those beyond."""


def trace_id(run_id: str, attempt: int, step: int) -> int:
    """Return the 16-byte id of the trace of a step of all ranks; never zero, which is not a valid id."""
    text = "\0".join(map(str, (run_id, attempt, step))).encode(errors="replace")
    return int.from_bytes(hashlib.sha256(text).digest()[:16]) or 1


def children_of(intervals: Sequence[PhaseInterval]) -> list[PhaseInterval]:
    """Return the intervals to send, in order of time: adjacent ones of a phase as one, and only the longest ``MAX_CHILDREN``."""
    merged: list[PhaseInterval] = []
    for interval in intervals:
        last = merged[-1] if merged else None
        if last is not None and (last.phase, last.end_unix_ns) == (interval.phase, interval.start_unix_ns):
            blocked_ns = last.blocked_ns + interval.blocked_ns
            merged[-1] = last._replace(end_unix_ns=interval.end_unix_ns, blocked_ns=blocked_ns)
        else:
            merged.append(interval)
    if len(merged) <= MAX_CHILDREN:
        return merged
    longest = nlargest(MAX_CHILDREN, merged, key=lambda interval: interval.end_unix_ns - interval.start_unix_ns)
    return sorted(longest, key=lambda interval: interval.start_unix_ns)


def step_attributes(record: StepRecord) -> dict[str, AttributeValue]:
    """Return the attributes of the span of a step. Device times are here: the device's clock is not that of the spans."""
    values: dict[str, AttributeValue | None] = {
        "step": record.step,
        "blocked_us": record.blocked_total_us,
        "own_us": record.own_us,
        "cpu_us": record.cpu_us,
        "run_queue_us": record.run_queue_us,
        "gc_us": record.gc_us,
        "samples": record.samples,
        "tokens": record.tokens,
        "input_elements": record.input_elements,
        "model_elements": record.model_elements,
        "flops": record.flops,
        "profiled": record.profiled,
        "tags": list(record.tags) or None,
        **{f"section.{name}_us": time_us for name, time_us in record.sections_us.items()},
    }
    for name, times in (
        ("phase", record.phases_us),
        ("blocked", record.blocked_us),
        ("device", record.device_us),
        ("device_blocked", record.device_blocked_us),
    ):
        values |= {f"{name}.{phase}_us": times.get(phase) for phase in PHASES if times is not None}
    return {f"rankscope.{name}": value for name, value in values.items() if value is not None}


def phase_attributes(interval: PhaseInterval, record: StepRecord) -> dict[str, AttributeValue]:
    """Return the attributes of the span of one stretch of a phase."""
    return {} if record.blocked_us is None else {"rankscope.blocked_us": interval.blocked_ns / 1000}


def resource_attributes(run: RunInfo, rank: RankInfo) -> dict[str, AttributeValue]:
    """Return the attributes of the source of the spans, with the names of OpenTelemetry's conventions where they exist."""
    values: dict[str, AttributeValue | None] = {
        "service.name": run.name,
        "service.instance.id": f"{run.run_id}/{rank.attempt}/{rank.rank}",
        "host.name": rank.host,
        "process.pid": rank.pid,
        "rankscope.run_id": run.run_id,
        "rankscope.attempt": rank.attempt,
        "rankscope.rank": rank.rank,
        "rankscope.world_size": rank.world_size,
        "rankscope.local_rank": rank.local_rank,
        "rankscope.device_kind": rank.device_kind,
        "rankscope.gpu_uuid": rank.gpu_uuid,
        "rankscope.gpu_name": rank.gpu_name,
        **{f"rankscope.coordinate.{name}": place for name, place in rank.coordinates.items()},
        # The exporter's format.
        "rankscope.simulated": "true" if run.simulated else None,
    }
    return {name: value for name, value in values.items() if value is not None}
