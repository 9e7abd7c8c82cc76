"""From the families of a page to OpenTelemetry's data: hardware conventions where they have a word, extensions elsewhere.

Points are made directly, not by instruments: an instrument keeps every set of attributes it ever saw, and ranks come and go while
a node lives. So nothing is sent again that the page no longer has, and a counter that began anew gets a new start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankscope.exporter.catalogue import OtelName
from rankscope.exporter.pages.exposition import Family
from rankscope.exporter.pages.otlp_histograms import OtlpHistograms
from rankscope.exporter.pages.otlp_names import attributes, otel_name
from rankscope.exporter.pages.page import Page
from rankscope.exporter.source import Driver, FleetState, GpuState, Labels

_STATUS: Final = "gpu_up"
_STATUS_NAME: Final = OtelName(name="hw.status", kind="updowncounter", unit="1")
_STATUS_HELP: Final = "1 for the state the GPU is in."
_MEMORY: Final = OtelName(name="hw.gpu.memory.utilization", kind="gauge", unit="1")
_MEMORY_HELP: Final = "Share of the memory that is in use."
_STATES: Final = ("ok", "degraded", "failed", "predicted_failure")
# Of these nobody knows how they are.
_UNKNOWN: Final = frozenset({"starting", "released"})

_Key = tuple[str, tuple[tuple[str, str], ...]]
_Rank = tuple[str, str, str]


@dataclass(slots=True)
class _Counted:
    """A counter as it was last time: since when it counts, what it was, and when."""

    start_ns: int
    value: float
    at_ns: int


class OtlpMetrics:
    """Makes one message out of a page each time it is asked. ``temporality`` is that of counters; ``now_ns`` returns unix ns."""

    def __init__(
        self,
        page: Page,
        resource: Resource,
        *,
        temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._temporality = temporality
        self._page = page
        self._resource = resource
        self._now_ns = now_ns
        self._last_ns = now_ns()
        self._started_ns = self._last_ns
        self._counted: dict[_Key, _Counted] = {}
        self._histograms = OtlpHistograms(temporality)

    def collect(self) -> MetricsData:
        """Everything the page has now."""
        state = self._page.fleet.state() if self._page.fleet is not None else None
        families = self._page.families()
        at_ns = max(self._now_ns(), self._last_ns + 1)  # also when somebody sets the clock back
        found: dict[str, tuple[OtelName, str, list[NumberDataPoint]]] = {}
        counted: dict[_Key, _Counted] = {}
        hardware = _hardware(state) if state is not None else {}
        ranks = _ranks(families)
        for otel, text, given, value in self._values(families, state, hardware, ranks):
            _, _, points = found.setdefault(otel.name, (otel, text, []))
            point = self._point(otel, given, float(value * otel.times), at_ns, counted)
            if point is not None:
                points.append(point)
        metrics = [self._metric(*one) for one in found.values() if one[2]]
        metrics += self._histograms.metrics(
            families, lambda labels: _of_rank(labels, hardware, ranks), at_ns=at_ns, last_ns=self._last_ns
        )
        self._counted, self._last_ns = counted, at_ns
        scope = ScopeMetrics(InstrumentationScope("rankscope.exporter", version("rankscope")), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _values(
        self,
        families: Sequence[Family],
        state: FleetState | None,
        hardware: Mapping[str, dict[str, str]],
        ranks: Mapping[_Rank, Mapping[str, str]],
    ) -> Iterator[tuple[OtelName, str, dict[str, str], float]]:
        for family in families:
            otel = otel_name(family.name, family.type)
            if otel is None or family.name == _STATUS or family.type == "histogram":
                continue
            for point in family.points:
                labels = point.labels
                if labels and labels[0][0] == "uuid":
                    given = {**hardware.get(labels[0][1], {}), **attributes(otel, labels)}
                else:
                    given = {**_of_rank(labels, hardware, ranks), **attributes(otel, labels)}
                yield otel, family.help, given, point.value
        memory = {
            family.name: {point.labels: point.value for point in family.points}
            for family in families
            if family.name.endswith(("memory_used_bytes", "memory_total_bytes"))
        }
        for part in ("gpu_memory", "gpu_mig_memory"):
            for labels, used in memory.get(f"{part}_used_bytes", {}).items():
                if total := memory.get(f"{part}_total_bytes", {}).get(labels):
                    yield _MEMORY, _MEMORY_HELP, hardware.get(labels[0][1], {}), used / total
        for gpu in state.gpus if state is not None else ():
            now = _status(gpu)
            for one in _STATES if now is not None else ():
                yield (
                    _STATUS_NAME,
                    _STATUS_HELP,
                    {**hardware[gpu.identity.uuid], "hw.type": "gpu", "hw.state": one},
                    float(one == now),
                )

    def _point(
        self, otel: OtelName, given: dict[str, str], value: float, at_ns: int, counted: dict[_Key, _Counted]
    ) -> NumberDataPoint | None:
        if otel.kind != "counter":
            return NumberDataPoint(given, self._started_ns if otel.kind == "updowncounter" else None, at_ns, value)  # type: ignore[arg-type]
        key = otel.name, tuple(sorted(given.items()))
        before = self._counted.get(key)
        # What appears later counts from about then; what went backwards began anew.
        begun = (before.start_ns if value >= before.value else before.at_ns) if before is not None else self._last_ns
        counted[key] = _Counted(begun, value, at_ns)
        if self._temporality is AggregationTemporality.CUMULATIVE:
            return NumberDataPoint(given, begun, at_ns, value)
        if before is None:
            return None  # how much of it is new, nobody knows
        return NumberDataPoint(given, before.at_ns, at_ns, value - before.value if value >= before.value else value)

    def _metric(self, otel: OtelName, text: str, points: list[NumberDataPoint]) -> Metric:
        data: Gauge | Sum = Gauge(points)
        if otel.kind == "counter":
            data = Sum(points, self._temporality, is_monotonic=True)
        elif otel.kind == "updowncounter":
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=False)
        return Metric(otel.name, text, otel.unit, data)


def _hardware(state: FleetState) -> dict[str, dict[str, str]]:
    """The attributes that say which hardware it is, by the uuid of GPUs and MIG devices."""
    found: dict[str, dict[str, str]] = {}
    for gpu in state.gpus:
        given = found[gpu.identity.uuid] = _identity(gpu, state.driver)
        for device in gpu.sample.mig_devices if gpu.sample is not None else ():
            found[device.uuid] = {
                **given,
                "hw.id": device.uuid,
                "hw.parent": gpu.identity.uuid,
                "hw.name": f"MIG {device.profile} {device.gpu_instance}.{device.compute_instance}",
            }
    return found


def _identity(gpu: GpuState, driver: Driver | None) -> dict[str, str]:
    identity = gpu.identity
    given = {
        "hw.id": identity.uuid,
        # Not the index: that may change, and with it every series.
        "hw.name": f"GPU {identity.pci_bus_id}",
        "hw.model": identity.model,
        "hw.vendor": "NVIDIA",
        "hw.serial_number": identity.serial or "",
        "hw.driver_version": driver.driver_version if driver is not None else "",
    }
    return {key: value for key, value in given.items() if value}


def _status(gpu: GpuState) -> str | None:
    if not gpu.up:
        return None if gpu.reason in _UNKNOWN else "failed"
    readings = gpu.sample.readings if gpu.sample is not None else ()
    seen = {(one.metric, one.value, dict(one.labels).get("action")) for one in readings if not one.uuid}
    if ("gpu_row_remap_failure", 1, None) in seen:
        return "predicted_failure"
    asked_for = {action for metric, _, action in seen if metric == "gpu_recovery_action"}
    return "degraded" if asked_for - {"none"} or ("gpu_fabric_healthy", 0, None) in seen else "ok"


def _ranks(families: Iterable[Family]) -> dict[_Rank, Mapping[str, str]]:
    """What each rank says who it is: there are no joins behind a collector."""
    infos = (dict(one.labels) for family in families if family.name == "rank_info" for one in family.points)
    return {_rank(info): info for info in infos}


def _rank(given: Mapping[str, str]) -> _Rank:
    return given.get("run", ""), given.get("rank", ""), given.get("slot", "")


def _of_rank(labels: Labels, hardware: Mapping[str, dict[str, str]], ranks: Mapping[_Rank, Mapping[str, str]]) -> dict[str, str]:
    """The attributes of a series of a rank: its own labels, its run, and the GPU it says it uses."""
    given = dict(labels)
    info = ranks.get(_rank(given))
    if info is None:
        return {}
    of_run = {f"rankscope.{name}": given[name] for name in ("run", "rank", "slot")}
    return {**hardware.get(info.get("gpu_uuid", ""), {}), **of_run, "rankscope.run_id": info.get("run_id", "")}
