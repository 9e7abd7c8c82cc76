"""Conversion of a step to the spans of a trace: names, times and attributes. Pure; nothing here sends.

All ranks of a run derive the same trace id for the same step, so a step of all ranks is one trace in any trace store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from rankscope.runs.records import PHASES, RankInfo, RunInfo, StepRecord

Value = str | bool | int | float | list[str]

STEP: Final = "step"
PHASE_TIMES: Final = "laid_out"
"""Value of the attribute ``rankscope.phase_times`` of every step: each child is the sum of its phase, and children follow one
another in a fixed order, not at their real times. With gradient accumulation forward and backward alternate; a record holds their
sums."""


@dataclass(frozen=True, slots=True)
class SpanData:
    """One span. Ids are integers, never zero; times are unix nanoseconds."""

    name: str
    trace_id: int
    span_id: int
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, Value] = field(default_factory=dict)


def trace_id(run_id: str, attempt: int, step: int) -> int:
    """Return the 16-byte id of the trace of a step of all ranks."""
    return _hashed(16, run_id, attempt, step)


def step_spans(record: StepRecord, run_id: str, attempt: int, rank: int) -> tuple[SpanData, list[SpanData]]:
    """Return the span of a step and those of its phases, which sum to it if every phase is known."""
    trace = trace_id(run_id, attempt, record.step)
    start, end = record.start_unix_ns, record.start_unix_ns + round(record.wall_us * 1000)
    parent = SpanData(STEP, trace, _hashed(8, trace, rank, STEP), start, end, _of_step(record))
    children: list[SpanData] = []
    elapsed_us = 0.0
    for phase in PHASES:
        time_us = record.phases_us.get(phase)
        if time_us is None:
            continue
        # Round the sums instead of summing rounded values, so that rounding errors do not accumulate.
        begun, elapsed_us = start + round(elapsed_us * 1000), elapsed_us + time_us
        attributes: dict[str, Value] = {}
        for name, times in (
            ("rankscope.blocked_us", record.blocked_us),
            ("rankscope.device_us", record.device_us),
            ("rankscope.device_blocked_us", record.device_blocked_us),
        ):
            if times is not None and (value := times.get(phase)) is not None:
                attributes[name] = value
        ended = min(end, start + round(elapsed_us * 1000))
        children.append(SpanData(phase, trace, _hashed(8, trace, rank, phase), min(begun, ended), ended, attributes))
    return parent, children


def _of_step(record: StepRecord) -> dict[str, Value]:
    known: dict[str, Value | None] = {
        "step": record.step,
        "phase_times": PHASE_TIMES,
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
    return {f"rankscope.{name}": value for name, value in known.items() if value is not None}


def resource_attributes(run: RunInfo, rank: RankInfo) -> dict[str, Value]:
    """Return the attributes of the source of the spans, with the names of OpenTelemetry's conventions where they exist."""
    known: dict[str, Value | None] = {
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
    return {name: value for name, value in known.items() if value is not None}


def _hashed(size: int, *parts: object) -> int:
    text = "\0".join(map(str, parts)).encode(errors="replace")
    # Zero is not a valid id.
    return int.from_bytes(hashlib.sha256(text).digest()[:size]) or 1
