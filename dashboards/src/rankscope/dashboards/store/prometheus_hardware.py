"""GPU samples for a run that recorded none, from a Prometheus that scrapes the exporters of the nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.evidence.hardware import bare
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.alerts.prometheus import Prometheus, Series, step_for
from rankscope.dashboards.data.hardware import GAUGES, ROW, GaugeRange, Gpu, Hardware, HardwareIndex, Rows, nothing

SELECTORS: Final[Mapping[str, tuple[str, str]]] = {
    "utilization_ratio": ("gpu_utilization_ratio", ""),
    "memory_used_bytes": ("gpu_memory_used_bytes", ""),
    "temperature_celsius": ("gpu_temperature_celsius", ""),
    "temperature_margin_celsius": ("gpu_temperature_margin_celsius", ""),
    "power_watts": ("gpu_power_watts", ""),
    "power_limit_watts": ("gpu_power_limit_watts", ""),
    "sm_clock_hertz": ("gpu_clock_hertz", 'clock="sm"'),
    "sm_clock_max_hertz": ("gpu_clock_max_hertz", 'clock="sm"'),
}
"""Gauge of ``GAUGES`` to the exporter's metric, and the label matcher of its series."""
MOST_POINTS: Final = 2048
"""Most points per GPU: more than a figure has columns."""
MOST_VALUES: Final = 400_000
"""Most values of one gauge over all GPUs; with many GPUs, each gets fewer points."""
LEAST_STEP_S: Final = 5.0
NAMED: Final = 4
"""Most GPUs without a reading that are listed by name."""

_GPUS_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class HardwareFound:
    """Readings that Prometheus has of the requested GPUs."""

    gpus: list[Gpu]
    """GPUs by the uuids of their ranks; the host is ``""`` if no exporter reports it."""
    rows: dict[str, Rows]
    """GPU (uuid) to its readings in order of time."""
    missing: list[str]
    """GPUs (uuids) without a reading in the span: no exporter, not scraped, or past the retention."""
    step_s: float
    """Seconds between the points; values between the points are not shown."""
    warnings: list[str]
    """Prometheus' own warnings about incomplete answers."""


def scraped_hardware(prometheus: Prometheus, analysis: Analysis, span_unix_ns: tuple[int, int], recorded: Hardware) -> Hardware:
    """Return the Prometheus' samples of the GPUs of a run whose own samples, ``recorded``, are empty. Never raises: ``why_none``
    has the reason if there are none.
    """
    ranks: dict[str, tuple[int, ...]] = {}
    hosts: dict[str, str] = {}
    for rank in analysis.ranks:
        if rank.gpu_uuid:
            ranks[rank.gpu_uuid] = (*ranks.get(rank.gpu_uuid, ()), rank.rank)
            hosts[rank.gpu_uuid] = rank.host or ""
    if not ranks:
        return recorded
    why = recorded.index.why_none or ""
    try:
        found = hardware_of(prometheus, ranks, span_unix_ns)
    except RankscopeError as error:
        return nothing(f"{why}; {error}")
    if not found.gpus:
        return nothing(f"{why}; {prometheus.name} has no reading of its GPUs in that time")
    told = [msgspec.structs.replace(gpu, host=hosts[gpu.gpu_uuid] or gpu.host) for gpu in found.gpus]
    named = ", ".join(found.missing[:NAMED]) + (f" and {len(found.missing) - NAMED:,} more" if len(found.missing) > NAMED else "")
    left = [f"{prometheus.name}: no reading of {named}"] if found.missing else []
    index = HardwareIndex(
        gpus=sorted(told, key=lambda gpu: (gpu.host, gpu.gpu_uuid)),
        missing=[*found.warnings, *left],
        unsampled_ranks=sorted(rank for uuid in found.missing for rank in ranks[uuid]),
        prometheus=prometheus.name,
        step_s=found.step_s,
        clock_host=recorded.index.clock_host,
    )
    return Hardware(index, lambda gpu: found.rows[gpu.gpu_uuid], recorded.clock)


def hardware_of(
    prometheus: Prometheus,
    ranks: Mapping[str, tuple[int, ...]],
    span_unix_ns: tuple[int, int],
    *,
    most_points: int = MOST_POINTS,
) -> HardwareFound:
    """Return readings of GPUs (uuid to the ``ranks`` on each) between two times. Raises ``PrometheusError``.

    Gauges that a MIG device shares with its neighbours (clock, temperature, power) are in the series of its parent GPU, so the
    parent's readings stand for it.
    """
    step_s = step_for(span_unix_ns, most_points=max(2, min(most_points, MOST_VALUES // max(1, len(ranks)))), least_s=LEAST_STEP_S)
    first, last = span_unix_ns
    warnings: dict[str, None] = {}

    def labels_of(metric: str, uuids: Collection[str], labels: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the values of ``labels`` that a metric of these GPUs had at any time of the span; the first is the uuid."""
        seconds = max(1, -(-(last - first) // 10**9))
        wanted = f"max by ({', '.join(labels)}) (max_over_time({metric}{{{_any_of(uuids)}}}[{seconds}s]))"
        answer = prometheus.query(wanted, at_unix_ns=last)
        warnings.update(dict.fromkeys(answer.warnings))
        values = ([one.labels.get(label, "") for label in labels] for one in answer.series)
        return [(bare(uuid), *others) for uuid, *others in values]

    def readings_of(metric: str, label: str, uuids: Collection[str]) -> dict[str, Series]:
        """Return GPU (uuid without its kind) to its readings, merged over all exporters and jobs that report it."""
        picked = ", ".join(part for part in (_any_of(uuids), label) if part)
        answer = prometheus.query_range(f"max by (uuid) ({metric}{{{picked}}})", span_unix_ns=span_unix_ns, step_s=step_s)
        warnings.update(dict.fromkeys(answer.warnings))
        return {bare(one.labels.get("uuid", "")): one for one in answer.series}

    gpus: list[Gpu] = []
    rows: dict[str, Rows] = {}
    for begin in range(0, len(ranks), _GPUS_AT_ONCE):
        some = list(ranks)[begin : begin + _GPUS_AT_ONCE]
        parents = {uuid: parent for uuid, parent in labels_of("gpu_mig_info", some, ("uuid", "parent_uuid"))}  # noqa: C416  tuples of any length
        names = {uuid: bare(parents.get(bare(uuid), uuid)) for uuid in some}
        infos = {uuid: rest for uuid, *rest in labels_of("gpu_info", names.values(), ("uuid", "host", "simulated"))}
        readings = {gauge: readings_of(metric, label, names.values()) for gauge, (metric, label) in SELECTORS.items()}
        for uuid, name in names.items():
            mine = {gauge: found[name] for gauge, found in readings.items() if name in found}
            if mine:
                host, simulated = infos.get(name, ["", ""])
                rows[uuid] = _rows(mine)
                gpus.append(_gpu(uuid, host, ranks[uuid], rows[uuid], simulated=simulated == "true"))
    return HardwareFound(gpus, rows, [uuid for uuid in ranks if uuid not in rows], step_s, list(warnings))


def _rows(found: Mapping[str, Series]) -> Rows:
    """Return the gauges of one GPU at all times at which any is known."""
    unix_ns = np.unique(np.concatenate([one.unix_ns for one in found.values()]))
    rows: Rows = np.empty(len(unix_ns), ROW)
    rows["unix_ns"] = unix_ns
    for gauge in GAUGES:
        rows[gauge] = np.nan
        if gauge in found:
            rows[gauge][np.searchsorted(unix_ns, found[gauge].unix_ns)] = found[gauge].values
    return rows


def _gpu(uuid: str, host: str, ranks: Collection[int], rows: Rows, *, simulated: bool) -> Gpu:
    known = {gauge: rows[gauge][np.isfinite(rows[gauge])] for gauge in GAUGES}
    return Gpu(
        gpu_uuid=uuid,
        host=host,
        ranks=sorted(ranks),
        samples=len(rows),
        first_unix_ns=int(rows["unix_ns"][0]),
        last_unix_ns=int(rows["unix_ns"][-1]),
        gauges={
            gauge: GaugeRange(float(values.min()), float(values.max()), float(values[-1]))
            for gauge, values in known.items()
            if len(values)
        },
        simulated=simulated,
    )


def _any_of(uuids: Collection[str]) -> str:
    """Return a matcher of these GPUs with any uuid prefix, since CUDA's uuid of a MIG device does not show that it is one.

    Keeps only letters, digits and dashes of a uuid, which has no others, so that nothing can break out of the expression.
    """
    names = dict.fromkeys(
        "".join(char for char in bare(uuid) if char.isascii() and (char.isalnum() or char == "-")) for uuid in uuids
    )
    return 'uuid=~"{}"'.format("|".join(f"{kind}{name}" for name in names for kind in ("GPU-", "MIG-", "")))
