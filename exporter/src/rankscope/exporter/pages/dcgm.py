"""The page with the names of dcgm-exporter, for boards and rules that were written for those."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from rankscope.base.exposition import TEXT_TYPE, Family, exposition_text
from rankscope.exporter.catalogue import CATALOGUE, DcgmName
from rankscope.exporter.jobs.join import MULTIPLE
from rankscope.exporter.pages.dcgm_counters import DcgmCounters, LabelField, default_counters
from rankscope.exporter.pages.page import SIMULATED_COMMENT, MetricsPage, SeriesLoop
from rankscope.exporter.source import FleetState, GpuSample, GpuState, Labels, MigDevice
from rankscope.exporter.xids import XIDS

logger = logging.getLogger(__name__)

_SHARE: Final = re.compile(r"^[0-9]+c\.")
_LAST_XID: Final = "gpu_xid_last_code"
_RECENT_XIDS: Final = "gpu_xid_recent_errors"
_XIDS: Final = (_LAST_XID, _RECENT_XIDS, "gpu_xid_errors_total")
_NO_LICENCE: Final = ("gpu_vgpu_license_status", "no_vgpu_guest")
"""Absent metric and reason that DCGM reports as 0: without a vGPU there is no licence."""
_POD_LABELS: Final = (("container", "container_k8s"), ("namespace", "namespace_k8s"), ("pod", "pod_k8s"))
_TENANTS: Final = "gpu_tenant_info"
_OF_TENANTS: Final = ("gpu_tenant_memory_used_bytes", "gpu_tenant_sm_utilization_ratio")

_SeriesByUuid = dict[str, dict[str, list[tuple[Labels, float]]]]
"""Labels and values of a collector's series, by metric and uuid."""


@dataclass(frozen=True, slots=True)
class _DcgmMapping:
    """Mapping from a metric of the catalogue to a DCGM metric; ``of_mig``: the catalogue's metric is about MIG devices."""

    entry: DcgmName
    name: str
    of_mig: bool

    def labels(self, labels_of_page: Labels) -> Labels:
        """Return the labels that DCGM's series has of ours, and those that all of its series have."""
        kept_labels = [(self.entry.keep[name], value) for name, value in labels_of_page if name in self.entry.keep]
        return (*kept_labels, *self.entry.add.items())


class DcgmPage:
    """The data of ``page`` with DCGM's names, in text format 0.0.4 only: OpenMetrics requires ``_total`` for counters.

    ``hostname_label`` is ``Hostname``, or ``hostname`` as in newer releases of dcgm-exporter.
    """

    def __init__(
        self,
        page: MetricsPage,
        counters: DcgmCounters | None = None,
        *,
        hostname_label: Literal["Hostname", "hostname"] = "Hostname",
    ) -> None:
        self._page = page
        self._counters = counters or default_counters()
        self._hostname_label = hostname_label
        wanted = {counter.name for counter in self._counters.metrics}
        self._mappings: dict[str, tuple[_DcgmMapping, ...]] = {}
        for row in CATALOGUE:
            mappings = (_DcgmMapping(entry, entry.full_name, row.name.startswith("gpu_mig_")) for entry in row.dcgm)
            self._mappings[row.name] = tuple(mapping for mapping in mappings if mapping.name in wanted)
        self._rates = _Rates(
            {metric for metric, mappings in self._mappings.items() if any(mapping.entry.rate for mapping in mappings)}
        )
        self._uncollected = self._not_collected()
        for name, reason in (*self._counters.refused, *self._uncollected):
            logger.warning("DCGM-compatible page: no %s: %s", name, reason)

    def render(self) -> tuple[bytes, str]:
        """Render the page; return it with its content type."""
        families = {counter.name: Family(counter.name, counter.type, counter.help) for counter in self._counters.metrics}
        remarks = [f"{name} not available: {reason}" for name, reason in (*self._counters.refused, *self._uncollected)]
        if self._page.fleet is not None:
            state = self._page.fleet.state()
            jobs = {labels["uuid"]: labels for labels, _ in _fresh(self._page.jobs, "gpu_job_info")}
            xids = {metric: _by_uuid(_fresh(self._page.xid, metric)) for metric in _XIDS}
            tenants = {metric: _by_uuid(_fresh(self._page.jobs, metric)) for metric in (_TENANTS, *_OF_TENANTS)}
            for gpu in state.gpus:
                remarks += self._add_gpu(families, gpu, state, jobs, tenants)
                # Also for a GPU that is down: the Xid may be the reason.
                self._add_xids(families, gpu, self._labels(gpu, state, None, jobs.get(gpu.identity.uuid, {})), xids)
            remarks += self._remarks(state)
        comments = "".join(f"# {' '.join(remark.split())}\n" for remark in remarks).encode("utf-8", "replace")
        body = exposition_text(family for family in families.values() if family.points)
        return (SIMULATED_COMMENT if self._page.simulated else b"") + comments + body, TEXT_TYPE

    def _add_gpu(
        self,
        families: dict[str, Family],
        gpu: GpuState,
        state: FleetState,
        jobs: dict[str, dict[str, str]],
        tenants: _SeriesByUuid,
    ) -> Iterator[str]:
        """Add the series of a GPU; yield remarks about pods on it without values."""
        if gpu.sample is None:
            return
        of_uuid: dict[str, tuple[MigDevice | None, dict[str, str]]] = {"": (None, jobs.get(gpu.identity.uuid, {}))}
        of_uuid |= {instance.uuid: (instance, job) for instance, job in _instances(gpu.sample, jobs)}
        labels = {uuid: self._labels(gpu, state, instance, job) for uuid, (instance, job) in of_uuid.items()}
        values: dict[tuple[str, str, Labels], float] = {}
        divided: set[str] = set()
        rates = self._rates.of(gpu.sample)
        for reading in gpu.sample.readings:
            for mapping in self._mappings.get(reading.metric, ()):
                series = reading.metric, reading.uuid, reading.labels
                shown = rates.get(series) if mapping.entry.rate else reading.value
                if shown is not None and reading.uuid in labels and mapping.entry.labels.items() <= set(reading.labels):
                    key = mapping.name, reading.uuid, mapping.labels(reading.labels)
                    # Several series (two kinds of memory, for example) may be one series of DCGM.
                    values[key] = values.get(key, 0) + round(shown * mapping.entry.times, 6)
                    if mapping.of_mig:
                        divided.add(mapping.name)
        if any((absent.metric, absent.reason) == _NO_LICENCE for absent in gpu.sample.absent):
            values |= {(mapping.name, "", ()): 0 for mapping in self._mappings[_NO_LICENCE[0]]}
        for (name, of, further), value in values.items():
            # For a GPU with MIG, DCGM reports this per instance; with the GPU's own series a sum would count it twice.
            if of or name not in divided:
                families[name].add((*labels[of], *further), value)
        for instance, _ in of_uuid.values():
            yield from self._add_pods(families, gpu, state, instance, tenants=tenants, left_out=() if instance else divided)

    def _add_pods(
        self,
        families: dict[str, Family],
        gpu: GpuState,
        state: FleetState,
        instance: MigDevice | None,
        *,
        tenants: _SeriesByUuid,
        left_out: Collection[str],
    ) -> Iterator[str]:
        """Add memory and utilisation of each pod on a shared device; yield remarks about pods whose values are unknown."""
        uuid = instance.uuid if instance is not None else gpu.identity.uuid
        pods = _by_pod(tenants[_TENANTS].get(uuid, ())).keys()
        of_device = self._labels(gpu, state, instance, {}) if pods else ()
        for metric in _OF_TENANTS if pods else ():
            values = _by_pod(tenants[metric].get(uuid, ()))
            without = ", ".join(f"{pod.get('namespace')}/{pod.get('pod')}" for pod in map(dict, sorted(pods - values.keys())))
            for mapping in self._mappings[metric]:
                if mapping.name not in left_out:
                    for pod, value in values.items():
                        families[mapping.name].add((*of_device, *pod), round(value * mapping.entry.times, 6))
                    if without:
                        yield f"{mapping.name} on {uuid} not available for these pods, whose processes are unknown: {without}"

    def _add_xids(self, families: dict[str, Family], gpu: GpuState, labels: Labels, xids: _SeriesByUuid) -> None:
        for metric, series in xids.items():
            of_gpu = series.get(gpu.identity.uuid, [])
            for mapping in self._mappings[metric]:
                values: dict[Labels, float] = {}
                for labels_of_point, value in of_gpu:
                    further = _last_xid_labels(int(value)) if metric == _LAST_XID else mapping.labels(labels_of_point)
                    values[further] = values.get(further, 0) + value
                if not values and metric == _RECENT_XIDS and self._page.xid is not None:
                    values[mapping.labels(())] = 0  # as DCGM does without an error
                for further, value in values.items():
                    families[mapping.name].add((*labels, *further), value)

    def _labels(self, gpu: GpuState, state: FleetState, instance: MigDevice | None, job: dict[str, str]) -> Labels:
        identity = gpu.identity
        # DCGM's label is the GPU instance's profile; a compute instance's profile prefixes its share: 1c.3g.40gb.
        mig = (("GPU_I_PROFILE", _SHARE.sub("", instance.profile)), ("GPU_I_ID", str(instance.gpu_instance))) if instance else ()
        return (
            ("gpu", str(identity.index)),
            ("UUID", identity.uuid),
            ("pci_bus_id", identity.pci_bus_id.upper()),
            ("device", f"nvidia{identity.index}"),
            ("modelName", identity.model),
            *mig,
            (self._hostname_label, self._page.host),
            *((field, _label_value(field, gpu, state)) for field in self._counters.labels),
            *_pod_labels(job),
        )

    def _remarks(self, state: FleetState) -> Iterator[str]:
        """Yield the reasons for missing series: metrics that models or single GPUs lack, and GPUs that do not answer."""
        missing: dict[tuple[str, str, str], dict[str, None]] = {}
        up: Counter[str] = Counter()
        for gpu in state.gpus:
            if gpu.sample is None:
                yield f"{gpu.identity.uuid} is down: {gpu.detail or gpu.reason}"
                continue
            up[gpu.identity.model] += 1
            for absent in gpu.sample.absent:
                if (absent.metric, absent.reason) == _NO_LICENCE:
                    continue
                for mapping in self._mappings.get(absent.metric, ()):
                    if not absent.labels or mapping.entry.labels.items() <= set(absent.labels):
                        missing.setdefault((mapping.name, gpu.identity.model, absent.reason), {})[gpu.identity.uuid] = None
        for (name, model, reason), uuids in missing.items():
            device_text = model if len(uuids) == up[model] else ", ".join(uuids)
            yield f"{name} not available on {device_text}: {reason}"

    def _not_collected(self) -> tuple[tuple[str, str], ...]:
        """Return name and reason of the metrics whose collector is switched off."""
        collector_of: dict[str, str] = {}
        for row in CATALOGUE:
            for mapping in self._mappings[row.name]:
                collector_of.setdefault(mapping.name, row.collector)
        return tuple(
            (name, f"it needs --collector.{collector}")
            for name, collector in collector_of.items()
            if collector not in self._page.collectors
        )


_SeriesKey = tuple[str, str, Labels]


@dataclass(frozen=True, slots=True)
class _CounterSample:
    """Counters of one sample, and its monotonic time."""

    at_s: float
    values: dict[_SeriesKey, float]


class _Rates:
    """Rates per second of counters, between the last two samples that pages showed; none on a GPU's first page."""

    def __init__(self, metrics: Collection[str]) -> None:
        self._metrics = metrics
        self._latest: dict[str, tuple[_CounterSample | None, _CounterSample]] = {}

    def of(self, sample: GpuSample) -> dict[_SeriesKey, float]:
        """Return the rates of the counters of a sample; a counter that was reset is left out."""
        before, latest = self._latest.get(sample.identity.uuid, (None, None))
        if latest is None or latest.at_s != sample.monotonic_s:
            counted = (reading for reading in sample.readings if reading.metric in self._metrics)
            values = {(reading.metric, reading.uuid, reading.labels): reading.value for reading in counted}
            before, latest = latest, _CounterSample(sample.monotonic_s, values)
            self._latest[sample.identity.uuid] = before, latest
        if before is None or latest.at_s <= before.at_s:
            return {}
        elapsed_s = latest.at_s - before.at_s
        return {
            key: (value - before.values[key]) / elapsed_s
            for key, value in latest.values.items()
            if key in before.values and value >= before.values[key]
        }


def _fresh(loop: SeriesLoop | None, metric: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each series of a metric, unless the loop's last result is stale."""
    for point in (loop.latest().value if loop is not None else None) or ():
        if point.metric == metric:
            yield dict(point.labels), point.value


def _by_uuid(series: Iterable[tuple[dict[str, str], float]]) -> dict[str, list[tuple[Labels, float]]]:
    by_uuid: dict[str, list[tuple[Labels, float]]] = {}
    for labels, value in series:
        by_uuid.setdefault(labels["uuid"], []).append((tuple(labels.items()), value))
    return by_uuid


def _last_xid_labels(code: int) -> Labels:
    """Return the labels that dcgm-exporter gives the last Xid: its code and what it means."""
    xid = XIDS.get(code)
    return (("err_code", str(code)), ("err_msg", xid.meaning if xid else "unknown" if code else "no error"))


def _pod_labels(job: Mapping[str, str]) -> Labels:
    """Return DCGM's labels of the pod; none if several pods share the device, each of which has series of its own."""
    if MULTIPLE in (job.get("namespace_k8s"), job.get("pod_k8s")):
        return ()
    return tuple((dcgm_label, job[label]) for dcgm_label, label in _POD_LABELS if job.get(label, MULTIPLE) != MULTIPLE)


def _by_pod(series: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    """Return the values of tenants by the labels of their pod; a tenant without a pod is left out."""
    values: dict[Labels, float] = {}
    for labels, value in series:
        if pod := _pod_labels(dict(labels)):
            values[pod] = values.get(pod, 0) + value
    return values


def _instances(sample: GpuSample, jobs: Mapping[str, dict[str, str]]) -> Iterator[tuple[MigDevice, dict[str, str]]]:
    """Yield one MIG device per GPU instance, and its job: DCGM reports memory and counters that its compute instances share.

    An instance whose compute instances have different jobs has none.
    """
    devices: dict[int, list[MigDevice]] = {}
    for device in sample.mig_devices:
        devices.setdefault(device.gpu_instance, []).append(device)
    for of_instance in devices.values():
        by_pod = {_pod_labels(job): job for device in of_instance if (job := jobs.get(device.uuid))}
        yield of_instance[0], next(iter(by_pod.values())) if len(by_pod) == 1 else {}


def _label_value(field: LabelField, gpu: GpuState, state: FleetState) -> str:
    match field:
        case "DCGM_FI_DRIVER_VERSION":
            return state.driver.driver_version if state.driver else ""
        case "DCGM_FI_NVML_VERSION":
            return state.driver.nvml_version if state.driver else ""
        case "DCGM_FI_DEV_SERIAL":
            return gpu.identity.serial or ""
        case "DCGM_FI_DEV_VBIOS_VERSION":
            return gpu.identity.vbios_version or ""
