"""OpenTelemetry measurements of a page: names of the hardware conventions where they exist, ``rankscope.…`` elsewhere."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, Literal, NamedTuple

from rankscope.base.exposition import Family, Kind
from rankscope.exporter.catalogue import BY_NAME, OtelName
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.source import Driver, FleetState, GpuState, Labels
from rankscope.exporter.spool.series import RankKey

InstrumentKind = Literal["gauge", "counter", "updowncounter", "histogram"]

_LONGEST_NAME: Final = 200
_UNITS: Final = {"celsius": "Cel", "bytes": "By", "ratio": "1", "watts": "W", "joules": "J", "hertz": "Hz", "seconds": "s"}
_STATES: Final = ("ok", "degraded", "failed", "predicted_failure")
# Reasons for ``gpu_up`` 0 that leave the state of the GPU unknown.
_UNKNOWN: Final = frozenset({"starting", "released"})


class Instrument(NamedTuple):
    """Identity of an instrument: two metrics that differ in kind or unit are two instruments, even with the same name."""

    name: str
    kind: InstrumentKind
    unit: str


class Buckets(NamedTuple):
    """A histogram: upper bounds except +Inf, the count of each bucket up to +Inf, and the sum of all observations."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float


class Measurement(NamedTuple):
    """One value of an instrument, in its unit."""

    instrument: Instrument
    help: str
    attributes: Mapping[str, str]
    value: float | Buckets


_STATUS: Final = Instrument("hw.status", "updowncounter", "1")
_MEMORY_UTILIZATION: Final = Instrument("hw.gpu.memory.utilization", "gauge", "1")


def measurements(page: MetricsPage) -> Iterator[Measurement]:
    """Yield a measurement for every series of the page that has a name in OpenTelemetry.

    Infinities and NaN are left out, because many backends reject a message that has one.
    """
    state = page.fleet.state() if page.fleet is not None else None
    families = page.families()
    identities = _Identities(state, families)
    for family in families:
        otel = otel_name(family.name, family.type)
        if otel is None or family.name == "gpu_up":
            continue
        instrument = Instrument(otel.name, otel.kind, otel.unit)
        for labels, value in _histograms(family) if otel.kind == "histogram" else _numbers(family, otel.times):
            yield Measurement(instrument, family.help, {**identities.of(labels), **attributes(otel, labels)}, value)
    yield from _memory_utilization(families, identities)
    for gpu in state.gpus if state is not None else ():
        now = _status(gpu)
        for hw_state in _STATES if now is not None else ():
            state_attributes = {**identities.hardware[gpu.identity.uuid], "hw.type": "gpu", "hw.state": hw_state}
            yield Measurement(_STATUS, "1 for the state the GPU is in.", state_attributes, float(hw_state == now))


def _numbers(family: Family, times: float) -> Iterator[tuple[Labels, float]]:
    for point in family.points:
        if math.isfinite(point.value):
            yield point.labels, float(point.value * times)


def _histograms(family: Family) -> Iterator[tuple[Labels, Buckets]]:
    """Yield labels and content of each histogram of a family, whose series are checked and adjacent (``exposition.Family``)."""
    for labels, points in groupby(family.points, lambda point: tuple(pair for pair in point.labels if pair[0] != "le")):
        parts = [*points]
        *buckets, _, _ = parts
        total = next(point.value for point in parts if point.name.endswith("_sum"))
        bounds = tuple(float(dict(point.labels)["le"]) for point in buckets[:-1])
        counts = tuple(
            point.value - before for point, before in zip(buckets, (0, *(bucket.value for bucket in buckets)), strict=False)
        )
        yield labels, Buckets(bounds, counts, float(total))


def _memory_utilization(families: Iterable[Family], identities: _Identities) -> Iterator[Measurement]:
    memory = {
        family.name: {point.labels: point.value for point in family.points}
        for family in families
        if family.name.endswith(("memory_used_bytes", "memory_total_bytes"))
    }
    for part in ("gpu_memory", "gpu_mig_memory"):
        for labels, used in memory.get(f"{part}_used_bytes", {}).items():
            if total := memory.get(f"{part}_total_bytes", {}).get(labels):
                text = "Share of the memory that is in use."
                yield Measurement(_MEMORY_UTILIZATION, text, identities.of(labels), used / total)


class _Identities:
    """Attributes that identify the hardware or rank of a series; each series carries them, because OTLP has no joins."""

    def __init__(self, state: FleetState | None, families: Iterable[Family]) -> None:
        self.hardware: dict[str, dict[str, str]] = {}
        for gpu in state.gpus if state is not None else ():
            self._add_gpu(gpu, state.driver if state is not None else None)
        infos = (point.labels for family in families if family.name == "rank_info" for point in family.points)
        self._ranks = {RankKey.of(labels): dict(labels) for labels in infos}

    def of(self, labels: Labels) -> dict[str, str]:
        """Return the attributes of a series; a rank's include those of its GPU."""
        if labels and labels[0][0] == "uuid":
            return self.hardware.get(labels[0][1], {})
        key = RankKey.of(labels)
        info = self._ranks.get(key)
        if info is None:
            return {}
        of_run = {f"rankscope.{name}": value for name, value in key._asdict().items()}
        hardware = self.hardware.get(info.get("gpu_uuid", ""), {})
        return {**hardware, **of_run, "rankscope.run_id": info.get("run_id", "")}

    def _add_gpu(self, gpu: GpuState, driver: Driver | None) -> None:
        gpu_attributes = self.hardware[gpu.identity.uuid] = _gpu_identity(gpu, driver)
        devices = gpu.sample.mig_devices if gpu.sample is not None else ()
        for device in devices:
            self.hardware[device.uuid] = {
                **gpu_attributes,
                "hw.id": device.uuid,
                "hw.parent": gpu.identity.uuid,
                "hw.name": f"MIG {device.profile} {device.gpu_instance}.{device.compute_instance}",
            }


def _gpu_identity(gpu: GpuState, driver: Driver | None) -> dict[str, str]:
    identity = gpu.identity
    gpu_identity = {
        "hw.id": identity.uuid,
        # The index may change, the bus id does not.
        "hw.name": f"GPU {identity.pci_bus_id}",
        "hw.model": identity.model,
        "hw.vendor": "NVIDIA",
        "hw.serial_number": identity.serial or "",
        "hw.driver_version": driver.driver_version if driver is not None else "",
    }
    return {key: value for key, value in gpu_identity.items() if value}


def _status(gpu: GpuState) -> str | None:
    if not gpu.up:
        return None if gpu.reason in _UNKNOWN else "failed"
    readings = gpu.sample.readings if gpu.sample is not None else ()
    values = {(reading.metric, reading.value, dict(reading.labels).get("action")) for reading in readings if not reading.uuid}
    if ("gpu_row_remap_failure", 1, None) in values:
        return "predicted_failure"
    actions = {action for metric, _, action in values if metric == "gpu_recovery_action"}
    return "degraded" if actions - {"none"} or ("gpu_fabric_healthy", 0, None) in values else "ok"


@lru_cache(maxsize=1024)
def otel_name(name: str, kind: Kind) -> OtelName | None:
    """Return the OpenTelemetry name of a metric of the catalogue or of a rank; None if it is not exported.

    Not exported are ``…_info`` metrics, which become attributes, and the exporter's metrics about itself.
    """
    row = BY_NAME.get(name)
    if row is not None and row.otel is not None:
        return row.otel
    if row is not None and row.group == "exporter":
        return None
    return None if name.endswith("_info") or len(name) > _LONGEST_NAME else _extension(name, kind)


def attributes(otel: OtelName, labels: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the attributes besides identity: those of the catalogue, or each label as ``rankscope.label``.

    An attribute of the catalogue that is empty, because the series lacks its label, is left out.
    """
    if otel.attributes:
        label_values = defaultdict(str, labels)
        texts = {key: value.format_map(label_values) for key, value in otel.attributes.items()}
        return {key: text for key, text in texts.items() if text}
    return {f"rankscope.{label}": value for label, value in labels if label != "uuid"}


def _extension(name: str, kind: Kind) -> OtelName:
    """Convert ``gpu_sm_active_seconds_total`` to ``rankscope.gpu.sm_active_time`` with unit ``s``."""
    words = name.removesuffix("_total")
    unit = "1"
    for unit_word, otel_unit in _UNITS.items():
        if words.endswith(f"_{unit_word}_per_second"):
            words, unit = words.removesuffix(f"_{unit_word}_per_second") + "_rate", f"{otel_unit}/s"
        elif words.endswith(f"_{unit_word}"):
            # The suffix distinguishes a counter of seconds from the ratio of the same name.
            words = words.removesuffix(f"_{unit_word}") + ("_time" if unit_word == "seconds" and kind == "counter" else "")
            unit = otel_unit
    area, _, metric_name = words.partition("_")
    return OtelName(name=f"rankscope.{area}.{metric_name}", kind=kind, unit=unit)
