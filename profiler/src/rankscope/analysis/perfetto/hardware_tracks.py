"""Samples of a host's GPUs as counters, and instants where a state or an error count changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.runs.records import HardwareSample

_COUNTERS: Final[tuple[tuple[str, str, Callable[[HardwareSample], float | None]], ...]] = (
    # name, unit, value
    ("temperature", "°C", lambda sample: sample.temperature_celsius),
    ("power", "W", lambda sample: sample.power_watts),
    ("SM clock", "MHz", lambda sample: _scaled(sample.sm_clock_hertz, 1e-6)),
    ("utilisation", "%", lambda sample: _scaled(sample.utilization_ratio, 100)),
    ("memory used", "MiB", lambda sample: _scaled(sample.memory_used_bytes, 2**-20)),
)

_COUNTED: Final[tuple[tuple[str, Callable[[HardwareSample], int | None]], ...]] = (
    # name, count so far; an instant marks an increase
    ("Xid errors", lambda sample: sample.xid_errors),
    ("uncorrected ECC errors", lambda sample: sample.ecc_uncorrected_errors),
    ("PCIe replays", lambda sample: sample.pcie_replays),
    ("NVLink errors", lambda sample: sample.nvlink_errors),
)

WEIGHT: Final = len(_COUNTERS)
"""Number of events of a sample; few samples have instants in addition."""


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def gpu_name(sample: HardwareSample) -> str:
    """Return the display name of the GPU of a sample."""
    if sample.gpu_index is not None and sample.parent_uuid is None:
        return f"GPU {sample.gpu_index}"
    return f"GPU {sample.gpu_uuid}" if sample.gpu_uuid else "host"


def write_hardware(writer: TraceWriter, pid: int, samples: Iterable[HardwareSample], correct: Callable[[int], int]) -> None:
    """Write the counters of one host; ``correct`` converts its times to the common clock. Missing values are gaps, never 0."""
    moments = writer.track(pid, "changes")
    before: dict[str, HardwareSample] = {}
    for sample in sorted(samples, key=lambda sample: (sample.unix_ns, gpu_name(sample))):
        at, gpu = correct(sample.unix_ns), gpu_name(sample)
        for name, unit, value_of in _COUNTERS:
            value = value_of(sample)
            if value is not None and math.isfinite(value):
                writer.counter(pid, f"{gpu} {name}", unit, at, value)
        for changes in _changes(before.get(gpu), sample):
            moments.instant(f"{gpu}: {changes}", at, {"gpu_uuid": sample.gpu_uuid or "not known"}, kind="hardware")
        before[gpu] = sample


def _changes(before: HardwareSample | None, now: HardwareSample) -> list[str]:
    changes: list[str] = []
    if now.missing and (before is None or before.missing != now.missing):
        changes.append(f"no values: {now.missing}")
    reasons = sorted(now.throttle_reasons or [])
    if now.throttle_reasons is not None and reasons != sorted((before.throttle_reasons if before else None) or []):
        changes.append(f"clock lowered: {', '.join(reasons)}" if reasons else "clock no longer lowered")
    for name, count_of in _COUNTED:
        count, earlier = count_of(now), count_of(before) if before else None
        if count is not None and earlier is not None and count > earlier:
            changes.append(f"{count - earlier} more {name}")
    return changes
