"""Table of all GPUs of a run, which can be sorted, filtered and saved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankscope.dashboards.data.hardware import SampledGpu
from rankscope.dashboards.hardware.data import GpuStatistics
from rankscope.dashboards.hardware.lines import KIND_NAMES
from rankscope.dashboards.model.columns import Column, number_column, text_column

_LINKS: Final = {"pcie_link_width": "PCIe x{}", "pcie_link_generation": "PCIe gen {}", "nvlinks_down": "{} NVLinks down"}

COLUMNS: Final[list[Column]] = [
    text_column("host", "Host", width=120, pinned=True),
    text_column("gpu", "GPU", width=84, pinned=True),
    text_column("ranks", "Ranks", width=92, if_known=True),
    number_column("temperature_highest", "Max °C", "Highest temperature of the steps shown", digits=0, width=96),
    number_column("temperature_median", "Median °C", "Median temperature of the steps shown", digits=0, width=112),
    number_column(
        "thermal_headroom",
        "Headroom °C",
        "Fewest degrees that were left until the GPU slows down because of heat",
        digits=0,
        width=126,
        if_known=True,
    ),
    number_column("power_highest", "Max W", "Highest power of the steps shown", digits=0, width=96),
    number_column("power_median", "Median W", "Median power of the steps shown", digits=0, width=112),
    number_column("power_limit", "Limit W", "Lowest power limit of the steps shown", digits=0, width=104, if_known=True),
    number_column("power_headroom", "Headroom W", "Limit less the median power", digits=0, width=126, if_known=True),
    number_column("clock_median", "Clock MHz", "Median SM clock of the steps shown", digits=0, width=114),
    number_column(
        "clock_low",
        "Low clock %",
        "SM clock that was undercut in one in twenty of the samples shown, while in use, against the median of its whole run",
        digits=0,
        width=120,
        if_known=True,
    ),
    number_column("utilization", "Use %", "Median of the steps shown", digits=0, width=92),
    number_column("memory", "Memory GiB", "Highest use of the steps shown", digits=1, width=120, if_known=True),
    number_column("memory_total", "Of GiB", "Memory that it has", digits=1, width=96, if_known=True),
    number_column(
        "throttled",
        "Throttled %",
        "Share of samples of the run in which clocks were held down",
        digits=1,
        width=120,
        if_known=True,
    ),
    text_column("throttled_by", "Throttled by", width=220, hover=True, if_known=True),
    number_column("xid", "Xid", "Xid errors during the run, not those of programs", digits=0, width=84, if_known=True),
    number_column("ecc", "ECC", "Uncorrected ECC errors during the run", digits=0, width=84, if_known=True),
    number_column(
        "link_errors",
        "Link errors",
        "NVLink errors and PCIe transfers repeated during the run",
        digits=0,
        width=116,
        if_known=True,
    ),
    text_column("links", "Links", width=210, hover=True, if_known=True),
    text_column("name", "Model", width=150, if_known=True),
    text_column("uuid", "UUID", width=330, hover=True),
    text_column("simulated", "Simulated", width=110),
]


def gpu_rows(
    gpus: Sequence[SampledGpu], statistics: Sequence[GpuStatistics], parents: Mapping[str, GpuStatistics]
) -> list[dict[str, Any]]:
    """Return a row per GPU, ``None`` for values it does not report. ``parents``: UUID of a MIG device to its GPU's statistics."""
    return [_row(gpu, own, parents.get(gpu.gpu_uuid)) for gpu, own in zip(gpus, statistics, strict=True)]


def _row(gpu: SampledGpu, own: GpuStatistics, of_parent: GpuStatistics | None) -> dict[str, Any]:
    candidates = [own] if of_parent is None else [own, of_parent]

    def reading(kind: str, gauge: str, size: float = 1.0) -> float | None:
        """Return a value of the device itself, or else of the GPU that contains it, divided by ``size``."""
        values = [getattr(statistics, kind)[gauge] for statistics in candidates]
        return next((float(value) / size for value in values if math.isfinite(value)), None)

    power, limit = reading("medians", "power_watts"), reading("lowest", "power_limit_watts")
    clocks = next((statistics for statistics in candidates if math.isfinite(statistics.low_clock_hertz)), None)
    return {
        "id": gpu.gpu_uuid,
        "host": gpu.host,
        "gpu": f"MIG of {gpu.parent_uuid}" if gpu.parent_uuid else None if gpu.index is None else str(gpu.index),
        "ranks": ", ".join(map(str, gpu.ranks)) or None,
        "temperature_highest": reading("highest", "temperature_celsius"),
        "temperature_median": reading("medians", "temperature_celsius"),
        "thermal_headroom": reading("lowest", "temperature_margin_celsius"),
        "power_highest": reading("highest", "power_watts"),
        "power_median": power,
        "power_limit": limit,
        "power_headroom": None if power is None or limit is None else limit - power,
        "clock_median": reading("medians", "sm_clock_hertz", 1e6),
        "clock_low": None if clocks is None else 100 * clocks.low_clock_hertz / clocks.usual_clock_hertz,
        "utilization": reading("medians", "utilization_ratio", 0.01),
        "memory": reading("highest", "memory_used_bytes", 2.0**30),
        "memory_total": None if gpu.memory_total_bytes is None else gpu.memory_total_bytes / 2.0**30,
        "throttled": _throttled(gpu),
        "throttled_by": _throttled_by(gpu),
        "xid": gpu.rises.get("xid_errors"),
        "ecc": gpu.rises.get("ecc_uncorrected_errors"),
        "link_errors": _link_errors(gpu),
        "links": _links(gpu),
        "name": gpu.name,
        "uuid": gpu.gpu_uuid,
        "simulated": "SIMULATED" if gpu.simulated else "no",
    }


def _throttled(gpu: SampledGpu) -> float | None:
    return 100 * gpu.throttled_samples / gpu.throttle_samples if gpu.throttle_samples else None


def _throttled_by(gpu: SampledGpu) -> str | None:
    if not gpu.throttle_samples:
        return None
    shares = sorted(gpu.throttled.items(), key=lambda item: -item[1])
    return ", ".join(f"{KIND_NAMES[reason]} {100 * count / gpu.throttle_samples:.3g} %" for reason, count in shares) or "nothing"


def _link_errors(gpu: SampledGpu) -> int | None:
    rises = [gpu.rises[counter] for counter in ("nvlink_errors", "pcie_replays") if counter in gpu.rises]
    return sum(rises) if rises else None


def _links(gpu: SampledGpu) -> str | None:
    """Return the last state of the links, with the worst or best state of the run if it differs from the last."""
    sentences = []
    for link, template in _LINKS.items():
        if (state := gpu.links.get(link)) is not None:
            worst = state.highest if link == "nvlinks_down" else state.lowest
            best = state.lowest if link == "nvlinks_down" else state.highest
            was = f" (was {worst})" if worst != state.last else f" (had {best})" if best != state.last else ""
            sentences.append(template.format(state.last) + was)
    return ", ".join(sentences) or None
