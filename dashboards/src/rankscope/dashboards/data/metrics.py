"""Metrics of the heat map: one value per rank and step, with its unit, its source and the end that is bad."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rankscope.analysis.evidence.step_table import steps as recorded
from rankscope.base.text import sentence_case

Worst = Literal["highest", "lowest"]
"""Bad end of a metric; a cell that covers several steps or ranks shows this extreme."""

Origin = Literal["records", "judged", "windows", "collectives", "samples"]


@dataclass(frozen=True, slots=True)
class MetricLabel:
    """Label of a metric and its unit: ``us``, ``ratio``, ``celsius``, ``watts``, ``hertz``, ``bytes``, or a counted noun."""

    label: str
    unit: str
    worst: Worst = "highest"
    origin: Origin = "records"


METRICS: Final[dict[str, MetricLabel]] = {
    **{name: MetricLabel(metric.label, metric.unit) for name, metric in recorded.METRICS.items()},
    "imposed_wait_us": MetricLabel("wait imposed on others", "us", origin="judged"),
    "profiled_imposed_wait_us": MetricLabel("wait imposed on others, in profiled steps", "us", origin="collectives"),
    "window_us": MetricLabel("profiled step", "us", origin="windows"),
    "compute_us": MetricLabel("compute", "us", origin="windows"),
    "communication_us": MetricLabel("communication", "us", origin="windows"),
    "overlap_us": MetricLabel("communication hidden by compute", "us", origin="windows"),
    "overlap_ratio": MetricLabel("share of communication hidden", "ratio", "lowest", "windows"),
    "exposed_communication_us": MetricLabel("exposed communication", "us", origin="windows"),
    "memcpy_us": MetricLabel("copies", "us", origin="windows"),
    "exposed_memcpy_us": MetricLabel("exposed copies", "us", origin="windows"),
    "idle_us": MetricLabel("idle", "us", origin="windows"),
    "recompute_us": MetricLabel("activation recomputation", "us", origin="windows"),
    "idle_starved_us": MetricLabel("idle, as nothing was launched", "us", origin="windows"),
    "temperature_celsius": MetricLabel("GPU temperature", "celsius", origin="samples"),
    "temperature_margin_celsius": MetricLabel("thermal headroom", "celsius", "lowest", "samples"),
    "power_watts": MetricLabel("GPU power", "watts", origin="samples"),
    "sm_clock_hertz": MetricLabel("SM clock", "hertz", "lowest", "samples"),
    "utilization_ratio": MetricLabel("GPU use", "ratio", "lowest", "samples"),
    "memory_used_bytes": MetricLabel("GPU memory used", "bytes", origin="samples"),
}
"""``imposed_wait_us`` comes from the step records alone: at each step the rank with the longest own time is charged with the
blocked time of the others. ``profiled_imposed_wait_us`` comes from matched collectives, in profiled steps only."""

WHY_UNKNOWN: Final[dict[Origin, str]] = {
    "records": "the recorder had no signal for it",
    "judged": "no ranks could be compared: that takes two with own times in the same five steps",
    "windows": "no step was profiled, or not with this in it; rankscope capture RUN asks a live run for it",
    "collectives": "no collective of a profiled step could be matched across the ranks; rankscope capture RUN profiles steps",
    "samples": "there are no hardware samples of the ranks' GPUs; rankscope run takes them where rankscope exporter runs",
}
"""Reason why a metric may be missing, and how to get it."""


def of_origin(origin: Origin) -> list[str]:
    """Return the names of the metrics of one origin."""
    return [name for name, metric in METRICS.items() if metric.origin == origin]


def why_unknown(metric: str) -> str:
    """Return why a metric without values is missing in a run."""
    return WHY_UNKNOWN[METRICS[metric].origin]


def worst_of(metric: str) -> np.ufunc:
    """Return the function that takes the worst of values; NaN only where all values are NaN."""
    description = METRICS.get(metric)
    return np.fmin if description is not None and description.worst == "lowest" else np.fmax


def choices(available: Collection[str]) -> list[dict[str, str | bool]]:
    """Return the options of a selector: the metrics of a run, then the missing ones, disabled, with the reason."""
    options: list[dict[str, str | bool]] = [
        {
            "value": name,
            "label": sentence_case(metric.label) + ("" if name in available else f" (not known: {why_unknown(name)})"),
            "disabled": name not in available,
        }
        for name, metric in METRICS.items()
    ]
    return sorted(options, key=lambda option: bool(option["disabled"]))
