"""Compared quantities of the steps, as series [steps]: mean over the ranks of one side, in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rankscope.analysis.compare.comparable_steps import Basis, ComparableSteps
from rankscope.analysis.compare.compare_result import Unit
from rankscope.analysis.compare.recording import Recording
from rankscope.analysis.compare.shift import Series
from rankscope.analysis.costs.memory import memory_samples
from rankscope.analysis.evidence.compared import waiting
from rankscope.analysis.evidence.order import of_blocks
from rankscope.analysis.evidence.step_table.steps import METRICS
from rankscope.runs.records import PHASES, StepBreakdown

UNEXPLAINED_PART: Final = "rest"


@dataclass(frozen=True, slots=True)
class QuantityKind:
    """One quantity: its label, its unit, and which direction is better."""

    label: str
    unit: Unit = "us"
    better: Literal["lower", "higher"] = "lower"


STEP: Final = QuantityKind("step time")

PARTS: Final[dict[str, QuantityKind]] = {
    **{f"own_{phase}_us": QuantityKind(f"own: {METRICS[f'{phase}_us'].label}") for phase in PHASES},
    **{f"{phase}_us": QuantityKind(METRICS[f"{phase}_us"].label) for phase in PHASES},
    "waiting_us": QuantityKind("mean wait for later ranks"),
    "communication_us": QuantityKind("exposed communication"),
    UNEXPLAINED_PART: QuantityKind("unexplained"),
}

INSIDE: Final[dict[str, QuantityKind]] = {
    "own_us": QuantityKind("own time"),
    "blocked_us": QuantityKind("blocked by other ranks"),
    "cpu_us": QuantityKind("CPU time"),
    "run_queue_us": QuantityKind("waiting for a CPU"),
    "gc_us": QuantityKind("garbage collection"),
}

WINDOW: Final[dict[str, QuantityKind]] = {
    "window_us": QuantityKind("profiled step"),
    "compute_us": QuantityKind("compute"),
    "exposed_communication_us": QuantityKind("exposed comm. and waiting"),
    "exposed_memcpy_us": QuantityKind("exposed copies"),
    "idle_us": QuantityKind("idle"),
    "overlap_ratio": QuantityKind("hidden communication", "ratio", "higher"),
}

SINGLE: Final[dict[str, QuantityKind]] = {
    "peak_allocated_bytes": QuantityKind("device memory, peak", "bytes"),
    "reserved_bytes": QuantityKind("device memory reserved", "bytes"),
    "resident_bytes": QuantityKind("resident memory", "bytes"),
    "recorder_share": QuantityKind("recorder's cost", "ratio"),
}


def parts(side: ComparableSteps, basis: Basis) -> dict[str, Series]:
    """Return the known parts of the step; they add up to the step's mean wall time, or to less.

    Basis ``own``: own time per phase, waiting (blocked while another rank had own work to do), and communication (the rest of
    blocked time). Basis ``wall``: the phases. Waiting is the mean over all ranks, the last one included; so the imposed wait per
    waiting rank is longer.
    """
    names = [f"own_{phase}_us" if basis == "own" else f"{phase}_us" for phase in PHASES]
    series_of_parts = {name: side.means[name] for name in names if name in side.means}
    if basis == "own":

        def waiting_and_rest(steps: slice) -> tuple[Series, Series]:
            blocked = side.table.some("blocked_us", steps).astype(np.float64)
            wait = waiting(side.table.some("own_us", steps), blocked)
            return wait.mean(axis=0), (blocked - wait).mean(axis=0)

        each = of_blocks((len(side.table.ranks), len(side.table.steps)), waiting_and_rest)
        series_of_parts["waiting_us"], series_of_parts["communication_us"] = map(np.concatenate, zip(*each, strict=True))
    return series_of_parts


def with_rest(
    of_a: Mapping[str, Series], of_b: Mapping[str, Series], wall_a: Series, wall_b: Series
) -> dict[str, tuple[Series, Series]]:
    """Return the parts of both sides, and the rest of the step on either side.

    A phase that only one side recorded lies in the rest of the other, so it counts as rest on both sides.
    """
    both = {name: (of_a[name], of_b[name]) for name in of_a if name in of_b}
    rest_a = wall_a - sum(a for a, _ in both.values())
    rest_b = wall_b - sum(b for _, b in both.values())
    if max(np.abs(rest_a).max(initial=0) / wall_a.mean(), np.abs(rest_b).max(initial=0) / wall_b.mean()) > 1e-6:
        both[UNEXPLAINED_PART] = (rest_a, rest_b)
    return both


def windows(side: ComparableSteps) -> dict[str, list[Series]]:
    """Return the profiled steps per quantity, grouped by window: mean over the ranks that have the step."""
    rows: dict[int, list[StepBreakdown]] = {}
    first, end = side.steps
    warm = side.recording.table.steps[: side.left_out.get("warm_up", 0)]
    after = int(warm[-1]) + 1 if len(warm) else first
    for rank in side.table.ranks.tolist():
        for row in side.recording.windows[rank]:
            if max(first, after) <= row.step < end and not row.truncated:
                rows.setdefault(row.step, []).append(row)
    groups: list[list[int]] = []
    for step in sorted(rows):
        if groups and step == groups[-1][-1] + 1:
            groups[-1].append(step)
        else:
            groups.append([step])
    by_quantity = {
        name: [np.array([np.mean([getattr(row, name) for row in rows[step]]) for step in group]) for group in groups]
        for name in WINDOW
        if name != "overlap_ratio"
    }
    ratios = [np.array([ratio for step in group if (ratio := _overlap(rows[step])) is not None]) for group in groups]
    by_quantity["overlap_ratio"] = [group for group in ratios if len(group)]
    if all(row.device_kind == "cpu" for side_windows in rows.values() for row in side_windows):
        del by_quantity["idle_us"]  # without meaning on a CPU build
    return {name: series for name, series in by_quantity.items() if series}


def _overlap(rows: list[StepBreakdown]) -> float | None:
    communication = sum(row.communication_us for row in rows)
    return sum(row.overlap_us for row in rows) / communication if communication > 0 else None


def single(side: ComparableSteps, name: str) -> float | None:
    """Return one of ``SINGLE``: the largest of any rank in the side's steps; ``None`` if unknown."""
    recording = side.recording
    first, end = side.steps
    if name in ("recorder_share", "peak_allocated_bytes") and not _is_whole(recording, first, end):
        return None  # both cover all steps since the process began
    if name == "recorder_share":
        return side.recorder_share
    sampled = [memory_samples(samples, name) for samples in recording.table.memory.values()]
    inside = [values[(first <= steps) & (steps < end)] for steps, values in sampled]
    return max((float(values.max()) for values in inside if len(values)), default=None)


def _is_whole(recording: Recording, first: int, end: int) -> bool:
    steps = recording.table.steps
    return first <= int(steps[0]) and int(steps[-1]) < end
