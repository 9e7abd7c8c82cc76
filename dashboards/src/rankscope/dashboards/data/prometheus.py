"""Readings of a run's GPUs from a Prometheus that scrapes the exporters of the nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.alerts.prometheus import Prometheus, Series, step_for
from rankscope.analysis.hardware import bare
from rankscope.analysis.result import Analysis
from rankscope.dashboards.data.hardware_series import HardwareSeries

SELECTORS: Final[Mapping[str, tuple[str, str]]] = {
    "utilization_ratio": ("gpu_utilization_ratio", ""),
    "temperature_celsius": ("gpu_temperature_celsius", ""),
    "power_watts": ("gpu_power_watts", ""),
    "sm_clock_hertz": ("gpu_clock_hertz", 'clock="sm"'),
    "pcie_link_width": ("gpu_pcie_link_width", ""),
    "pcie_link_generation": ("gpu_pcie_link_generation", ""),
    "nvlinks_down": ("gpu_nvlink_links", 'state="down"'),
}
"""Gauge of ``rankscope.analysis.hardware.GAUGES`` to the exporter's metric, and the label that picks its series."""
MOST_POINTS: Final = 2048
"""Of one GPU: more than a figure has columns."""
MOST_VALUES: Final = 400_000
"""Of one gauge of all GPUs: of many GPUs there are fewer points each."""
LEAST_STEP_S: Final = 5.0

_GPUS_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class HardwareFound:
    """What Prometheus knows of the GPUs that were asked for."""

    series: list[HardwareSeries]
    missing: list[str]
    """GPUs (uuids) of which it has no reading in that time: no exporter there, not scraped, or no longer kept."""
    step_s: float
    """Seconds between the points; what lies between them is not shown."""
    warnings: list[str]
    """Prometheus' own, of answers that are not whole."""


def gpus_of(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    """GPUs of a run, by uuid, to the ranks that train on each."""
    found: dict[str, tuple[int, ...]] = {}
    for rank in analysis.ranks:
        if rank.gpu_uuid:
            found[rank.gpu_uuid] = (*found.get(rank.gpu_uuid, ()), rank.rank)
    return found


def hardware_of(
    prometheus: Prometheus,
    gpus: Mapping[str, tuple[int, ...]],
    span_unix_ns: tuple[int, int],
    *,
    most_points: int = MOST_POINTS,
    selectors: Mapping[str, tuple[str, str]] = SELECTORS,
) -> HardwareFound:
    """Readings of ``gpus`` (uuid to its ranks) between two moments. Raises ``PrometheusError``.

    What a MIG device shares with its neighbours (clock, heat, power, links) is in the series of the GPU that it is a part of, so
    that stands for it.
    """
    step_s = step_for(span_unix_ns, most_points=max(2, min(most_points, MOST_VALUES // max(1, len(gpus)))), least_s=LEAST_STEP_S)
    warnings: dict[str, None] = {}
    series: list[HardwareSeries] = []
    for some in _some(list(gpus), _GPUS_AT_ONCE):
        asking = _Asking(prometheus, span_unix_ns, step_s, warnings)
        parents = {bare(uuid): parent for uuid, parent in asking.about("gpu_mig_info", some, ("uuid", "parent_uuid"))}
        shown = {uuid: bare(parents.get(bare(uuid), uuid)) for uuid in some}
        infos = {bare(uuid): rest for uuid, *rest in asking.about("gpu_info", shown.values(), ("uuid", "host", "simulated"))}
        readings = {gauge: asking.gauge(metric, label, shown.values()) for gauge, (metric, label) in selectors.items()}
        for uuid, name in shown.items():
            host, simulated = infos.get(name, ["", ""])
            one = _merged({gauge: found[name] for gauge, found in readings.items() if name in found}, selectors)
            if one is not None:
                series.append(HardwareSeries(uuid, host or None, gpus[uuid], *one, simulated=simulated == "true"))
    there = {one.gpu_uuid for one in series}
    return HardwareFound(series, [uuid for uuid in gpus if uuid not in there], step_s, list(warnings))


@dataclass(frozen=True, slots=True)
class _Asking:
    """Questions about one time; ``warnings`` collects what the answers lack, once each."""

    prometheus: Prometheus
    span_unix_ns: tuple[int, int]
    step_s: float
    warnings: dict[str, None]

    def about(self, metric: str, uuids: Collection[str], labels: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Values of ``labels`` that a metric had at any moment of the time, of these GPUs."""
        first, last = self.span_unix_ns
        seconds = max(1, -(-(last - first) // 10**9))
        wanted = f"max by ({', '.join(labels)}) (max_over_time({metric}{{{_any_of(uuids)}}}[{seconds}s]))"
        answer = self.prometheus.query(wanted, at_unix_ns=last)
        self.warnings.update(dict.fromkeys(answer.warnings))
        return [tuple(one.labels.get(label, "") for label in labels) for one in answer.series]

    def gauge(self, metric: str, label: str, uuids: Collection[str]) -> dict[str, Series]:
        """GPU, without the kind of its uuid, to its readings, whichever and how many exporters and jobs show it."""
        picked = ", ".join(part for part in (_any_of(uuids), label) if part)
        answer = self.prometheus.query_range(
            f"max by (uuid) ({metric}{{{picked}}})", span_unix_ns=self.span_unix_ns, step_s=self.step_s
        )
        self.warnings.update(dict.fromkeys(answer.warnings))
        return {bare(one.labels.get("uuid", "")): one for one in answer.series}


def _merged(found: dict[str, Series], gauges: Collection[str]) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]] | None:
    """The gauges of one GPU at the times at which any is known."""
    if not found:
        return None
    unix_ns = np.unique(np.concatenate([one.unix_ns for one in found.values()]))
    values: dict[str, NDArray[np.float64]] = {}
    for gauge in gauges:
        values[gauge] = np.full(len(unix_ns), np.nan)
        if gauge in found:
            values[gauge][np.searchsorted(unix_ns, found[gauge].unix_ns)] = found[gauge].values
    return unix_ns, values


def _any_of(uuids: Collection[str]) -> str:
    """Matches these GPUs, whatever CUDA calls a MIG device: it does not say that it is one.

    Of a uuid only letters, digits and dashes are asked for: nothing else is in one, and nothing can break out of the expression.
    """
    names = dict.fromkeys(
        "".join(char for char in bare(uuid) if char.isascii() and (char.isalnum() or char == "-")) for uuid in uuids
    )
    return 'uuid=~"{}"'.format("|".join(f"{kind}{name}" for name in names for kind in ("GPU-", "MIG-", "")))


def _some(everything: list[str], at_once: int) -> Iterator[list[str]]:
    for first in range(0, len(everything), at_once):
        yield everything[first : first + at_once]
