"""Values of traces by rankscope, in the form of ``tests.trace_truth.values``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.collectives.windows import reduce_file, step_breakdowns
from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.kernels.device_times import DeviceTimes
from rankscope.analysis.result.detail import LaunchPart
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.work import work_events
from rankscope.base.errors import InputError
from rankscope.runs.records import CollectiveRecord

NANOSECOND_US = 0.001
PARTITION = (
    "window_us",
    "compute_us",
    "communication_us",
    "overlap_us",
    "exposed_communication_us",
    "memcpy_us",
    "exposed_memcpy_us",
    "idle_us",
)
QUALITY = ("device_events", "without_time", "far", "overlong", "launches", "without_kernel", "damaged_steps", "problem")
WAITING = ("transfer_us", "wait_us")
BANDWIDTH = (
    "op",
    "group",
    "group_size",
    "size_bucket_bytes",
    "count",
    "matched",
    "transfer_us",
    "algorithm_gb_s",
    "bus_gb_s",
    "bus_at_least_gb_s",
)


def values_of_file(path: Path) -> dict[str, Any]:
    """Return the values of one trace; ``refused`` has the message of the error."""
    try:
        (row,) = analyze([path], detail=True).ranks
    except InputError as error:
        return {"refused": str(error)}
    trace = read_trace(path)
    events = work_events(trace)
    steps = step_breakdowns(trace, events)
    detail = row.detail
    assert detail is not None
    return {
        "rank": row.rank,
        "world_size": trace.world_size,
        "host": row.host,
        "lacking": row.truncated,
        "damaged": trace.damaged,
        "quality": {name: getattr(row.data_quality, name) for name in QUALITY},
        "start_ns": detail.start_unix_ns,
        "window": {name: getattr(row, name) for name in (*PARTITION, "overlap_ratio")},
        "steps": {str(step.step): {name: getattr(step, name) for name in PARTITION} for step in steps},
        "own_us": {str(step): us for step, us in DeviceTimes(steps).own_us.items()} if trace.has_device_work else {},
        "streams": sorted(
            (_without(msgspec.to_builtins(row), "kind") for row in detail.streams),
            key=lambda row: [-1 if row[name] is None else row[name] for name in ("device", "stream")],
        ),
        "copies": sorted(
            (msgspec.to_builtins(row) for row in detail.copies),
            key=lambda row: (row["direction"], row["memory"] or "", row["collective"]),
        ),
        "launch": None if detail.launch is None else _launch(detail.launch),
        "collectives": _summed(reduce_file(trace, events).collectives),
    }


def values_of_job(folder: Path) -> dict[str, Any]:
    """Return the values of a job; ``refused`` has the message of the error, or why the traces are of no one job."""
    try:
        analysis = analyze([folder])
    except InputError as error:
        return {"refused": str(error)}
    if not analysis.source.is_one_job:
        return {"refused": analysis.verdict.summary}
    collectives = analysis.collectives
    assert collectives is not None
    offsets = {row.rank: row.clock.offset_us for row in analysis.ranks if row.clock is not None}
    waiting = {}
    for row in analysis.ranks:
        parts = {} if row.communication_parts is None else msgspec.to_builtins(row.communication_parts)
        waiting[str(row.rank)] = {name: getattr(row, name) for name in WAITING} | parts
    return {
        "ranks": [row.rank for row in analysis.ranks],
        "matched": collectives.matched,
        "unmatched": collectives.unmatched_by,
        "excluded": collectives.excluded,
        "method": collectives.method,
        "clock_us": {str(rank): offset - offsets[min(offsets)] for rank, offset in offsets.items()} if offsets else None,
        "residual_us": collectives.clock_residual_us,
        "waiting": waiting,
        "imposed": {str(row.rank): _without(msgspec.to_builtins(row), "rank", "share") for row in analysis.imposed_wait},
        "bandwidth": sorted(
            ({name: getattr(row, name) for name in BANDWIDTH} for row in collectives.by_op),
            key=lambda row: (row["op"], row["group"], row["group_size"] or 0, row["size_bucket_bytes"] or 0),
        ),
    }


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _launch(part: LaunchPart) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(part)
    return row | {"queue_delay": {item["kind"]: _without(item, "kind") for item in row["queue_delay"]}}


def _summed(records: Iterable[CollectiveRecord]) -> list[dict[str, Any]]:
    sums: dict[tuple[int, str, str], list[int]] = defaultdict(lambda: [0] * 4)
    for record in records:
        start, end = record.start_unix_ns, record.end_unix_ns
        for at, value in enumerate((1, record.bytes or 0, end - start, start - record.enqueue_unix_ns)):
            sums[record.step, record.group, record.op][at] += value
    return [
        {"step": step, "group": group, "op": op, "count": count, "bytes": moved, "us": ns / 1000, "queued_us": queued / 1000}
        for (step, group, op), (count, moved, ns, queued) in sorted(sums.items())
    ]


def differences(expected: Any, actual: Any, at: str = "") -> list[str]:
    """Return where two values differ: times by more than a nanosecond, others by more than a billionth."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = dict.fromkeys([*expected, *actual])
        return [line for key in keys for line in differences(expected.get(key), actual.get(key), f"{at}/{key}")]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [line for number, (item, other) in pairs for line in differences(item, other, f"{at}/{number}")]
    if isinstance(expected, float) and isinstance(actual, int | float):
        is_time = "us" in re.split("[/_]", at)
        same = abs(expected - actual) <= (NANOSECOND_US if is_time else 0) + 1e-9 * abs(expected)
    else:
        same = expected == actual and (expected is None) == (actual is None)
    return [] if same else [f"{at}: expected {expected!r}, found {actual!r}"]
