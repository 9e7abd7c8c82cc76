"""Step records as slices: the step, its phases, and the blocked time in each.

A record has the length of each phase, not its start. So phases are drawn one after the other in their usual order, with blocked
time at the end of its phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.trace.possible import MAX_US
from rankscope.runs.records import PHASES, Phase, StepRecord
from rankscope.runs.step_columns import TIME_COLUMNS
from rankscope.runs.step_segments import Rows

_OVERLAP: Final = 0.25
"""Largest share of a step that may overlap the next: starts are of an adjusted clock, durations are of another one."""

_SHOWN: Final = (
    "cpu_us",
    "run_queue_us",
    "voluntary_switches",
    "involuntary_switches",
    "gc_us",
    "samples",
    "tokens",
    "input_elements",
    "model_elements",
    "flops",
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "allocator_retries",
    "resident_bytes",
)


_COUNTED: Final = [name for name in TIME_COLUMNS if not name.startswith("device_")]


def weights(rows: Rows) -> NDArray[np.int64]:
    """Return an upper estimate of the events that ``write_steps`` writes for each record, [rows]."""
    measured: NDArray[np.int64] = np.count_nonzero([~np.isnan(rows[name]) for name in _COUNTED], axis=0)
    return 2 + measured


def write_steps(writer: TraceWriter, pid: int, records: Sequence[StepRecord], correct: Callable[[int], int]) -> None:
    """Write the tracks of one rank; ``correct`` converts its times to the common clock."""
    ordered = sorted(records, key=lambda record: (record.start_unix_ns, -record.wall_us, record.step))
    starts = [correct(record.start_unix_ns) for record in ordered]
    ends = [start + round(record.wall_us * 1000) for start, record in zip(starts, ordered, strict=True)]
    for at in range(len(ordered) - 1):
        if 0 < ends[at] - starts[at + 1] <= _OVERLAP * (ends[at] - starts[at]):
            ends[at] = starts[at + 1]
    steps = writer.track(pid, "steps", nest=False)
    for record, start, end in zip(ordered, starts, ends, strict=True):
        steps.slice(f"step {record.step}", start, end, _args(record), kind="step")
    phases = [(record, phases_in_order(record, start, end)) for record, start, end in zip(ordered, starts, ends, strict=True)]
    track = writer.track(pid, "phases (in their usual order)", nest=False)
    for _, drawn in phases:
        for name, begin, stop in drawn:
            track.slice(name, begin, stop, kind="phase")
    track = writer.track(pid, "blocked by other ranks (at the end of its phase)", nest=False)
    for record, drawn in phases:
        for name, begin, stop in drawn:
            waited = None if record.blocked_us is None else record.blocked_us.get(name)
            if waited is not None and 0 < waited < MAX_US:
                track.slice(f"blocked in {name}", max(begin, stop - round(waited * 1000)), stop, kind="blocked")
    _write_collections(writer, pid, ordered, starts)


def _write_collections(writer: TraceWriter, pid: int, records: Sequence[StepRecord], starts: Sequence[int]) -> None:
    """Write garbage collection as a counter, since a record has its length in the step, not its time."""
    before = 0.0
    for record, start in zip(records, starts, strict=True):
        if record.gc_us is not None and (record.gc_us or before):
            writer.counter(pid, "garbage collection in the step", "us", start, record.gc_us)
            before = record.gc_us


def phases_in_order(record: StepRecord, start: int, end: int) -> list[tuple[Phase, int, int]]:
    """Return name, start and end of each phase, cut to the step."""
    phases: list[tuple[Phase, int, int]] = []
    passed = 0.0
    for phase in PHASES:
        time = record.phases_us.get(phase)
        if time is not None and 0 < time < MAX_US:
            begin, passed = start + round(passed * 1000), passed + time
            if begin < end:
                phases.append((phase, begin, min(end, start + round(passed * 1000))))
    return phases


def _args(record: StepRecord) -> dict[str, Any]:
    args: dict[str, Any] = {"step": record.step, "wall_us": record.wall_us}
    if record.own_us is not None:
        args |= {"own_us": record.own_us, "blocked_us": record.blocked_total_us}
    args |= {name: value for name in _SHOWN if (value := getattr(record, name)) is not None}
    for name in ("device_us", "device_blocked_us"):
        if (times := getattr(record, name)) is not None:
            args[name] = {phase: value for phase in PHASES if (value := times.get(phase)) is not None}
    if record.sections_us:
        args["sections_us"] = record.sections_us
    if record.tags:
        args["tags"] = record.tags
    if record.profiled:
        args["profiled"] = "the profiler was on: times include its cost"
    return args
