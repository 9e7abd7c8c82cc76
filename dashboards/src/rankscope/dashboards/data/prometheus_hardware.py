"""Samples of a run's GPUs that the run does not have itself, from a Prometheus that scrapes the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.alerts.prometheus import Prometheus
from rankscope.analysis.result import Analysis
from rankscope.dashboards.data.hardware import GAUGES, ROW, GaugeRange, Gpu, Hardware, HardwareIndex, Rows, nothing
from rankscope.dashboards.data.hardware_series import HardwareSeries
from rankscope.dashboards.data.prometheus import SELECTORS, gpus_of, hardware_of
from rankscope.runs.errors import RankscopeError

SHOWN: Final[Mapping[str, tuple[str, str]]] = {
    **{gauge: selector for gauge, selector in SELECTORS.items() if gauge in GAUGES},
    "memory_used_bytes": ("gpu_memory_used_bytes", ""),
    "temperature_margin_celsius": ("gpu_temperature_margin_celsius", ""),
    "power_limit_watts": ("gpu_power_limit_watts", ""),
    "sm_clock_max_hertz": ("gpu_clock_max_hertz", 'clock="sm"'),
}
"""Gauge of ``rankscope.dashboards.data.hardware.GAUGES`` to the exporter's metric, and the label that picks its series."""

NAMED: Final = 4
"""GPUs without a reading that are called by their names."""


def scraped_hardware(prometheus: Prometheus, analysis: Analysis, span_unix_ns: tuple[int, int], recorded: Hardware) -> Hardware:
    """What the Prometheus knows of the GPUs of a run whose own samples, ``recorded``, are none. Never raises: why there is
    nothing is said in ``why_none``.
    """
    gpus = gpus_of(analysis)
    if not gpus:
        return recorded
    why = recorded.index.why_none or ""
    try:
        found = hardware_of(prometheus, gpus, span_unix_ns, selectors=SHOWN)
    except RankscopeError as error:
        return nothing(f"{why}; {error}")
    if not found.series:
        return nothing(f"{why}; {prometheus.name} has no reading of its GPUs in that time")
    hosts = {rank.gpu_uuid: rank.host for rank in analysis.ranks if rank.gpu_uuid}
    rows = {one.gpu_uuid: _rows(one) for one in found.series}
    told = [_gpu(one, hosts.get(one.gpu_uuid) or one.host or "", rows[one.gpu_uuid]) for one in found.series]
    named = ", ".join(found.missing[:NAMED]) + (f" and {len(found.missing) - NAMED:,} more" if len(found.missing) > NAMED else "")
    left = [f"{prometheus.name}: no reading of {named}"] if found.missing else []
    index = HardwareIndex(
        gpus=sorted(told, key=lambda gpu: (gpu.host, gpu.gpu_uuid)),
        missing=[*found.warnings, *left],
        unsampled_ranks=sorted(rank for uuid in found.missing for rank in gpus[uuid]),
        prometheus=prometheus.name,
        step_s=found.step_s,
        clock_host=recorded.index.clock_host,
    )
    return Hardware(index, lambda gpu: rows[gpu.gpu_uuid], recorded.clock)


def _rows(series: HardwareSeries) -> Rows:
    rows: Rows = np.empty(len(series.unix_ns), ROW)
    rows["unix_ns"] = series.unix_ns
    for gauge in GAUGES:
        rows[gauge] = series.values.get(gauge, np.nan)
    return rows


def _gpu(series: HardwareSeries, host: str, rows: Rows) -> Gpu:
    known = {gauge: rows[gauge][np.isfinite(rows[gauge])] for gauge in GAUGES}
    return Gpu(
        gpu_uuid=series.gpu_uuid,
        host=host,
        ranks=sorted(series.ranks),
        samples=len(rows),
        first_unix_ns=int(rows["unix_ns"][0]),
        last_unix_ns=int(rows["unix_ns"][-1]),
        gauges={
            gauge: GaugeRange(float(values.min()), float(values.max()), float(values[-1]))
            for gauge, values in known.items()
            if len(values)
        },
        simulated=series.simulated,
    )
