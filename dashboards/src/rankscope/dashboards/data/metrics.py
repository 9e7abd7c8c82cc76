"""Metrics of the heat map: one value per rank and step, with its unit, its source and the end that is bad."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rankscope.analysis.evidence.step_table import steps as recorded

Worst = Literal["highest", "lowest"]
"""Bad end of a metric; a cell that covers several steps or ranks shows this extreme."""

Origin = Literal["records", "judged", "windows", "collectives", "samples"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Label of a metric and its unit: ``us``, ``ratio``, ``celsius``, ``watts``, ``hertz``, ``bytes``, or a counted noun."""

    label: str
    unit: str
    worst: Worst = "highest"
    origin: Origin = "records"


METRICS: Final[dict[str, Metric]] = {
    **{name: Metric(metric.label, metric.unit) for name, metric in recorded.METRICS.items()},
    "imposed_wait_us": Metric("wait imposed on others", "us", origin="judged"),
    "profiled_imposed_wait_us": Metric("wait imposed on others, in profiled steps", "us", origin="collectives"),
    "window_us": Metric("profiled step", "us", origin="windows"),
    "compute_us": Metric("compute", "us", origin="windows"),
    "communication_us": Metric("communication", "us", origin="windows"),
    "overlap_us": Metric("communication hidden by compute", "us", origin="windows"),
    "overlap_ratio": Metric("share of communication hidden", "ratio", "lowest", "windows"),
    "exposed_communication_us": Metric("exposed communication", "us", origin="windows"),
    "memcpy_us": Metric("copies", "us", origin="windows"),
    "exposed_memcpy_us": Metric("exposed copies", "us", origin="windows"),
    "idle_us": Metric("idle", "us", origin="windows"),
    "recompute_us": Metric("activation recomputation", "us", origin="windows"),
    "idle_starved_us": Metric("idle, as nothing was launched", "us", origin="windows"),
    "temperature_celsius": Metric("GPU temperature", "celsius", origin="samples"),
    "temperature_margin_celsius": Metric("thermal headroom", "celsius", "lowest", "samples"),
    "power_watts": Metric("GPU power", "watts", origin="samples"),
    "sm_clock_hertz": Metric("SM clock", "hertz", "lowest", "samples"),
    "utilization_ratio": Metric("GPU use", "ratio", "lowest", "samples"),
    "memory_used_bytes": Metric("GPU memory used", "bytes", origin="samples"),
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
            "label": metric.label[:1].upper()
            + metric.label[1:]
            + ("" if name in available else f" (not known: {why_unknown(name)})"),
            "disabled": name not in available,
        }
        for name, metric in METRICS.items()
    ]
    return sorted(options, key=lambda option: bool(option["disabled"]))
