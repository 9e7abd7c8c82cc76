"""From what the collectors know to the metric families of one page."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE
from rankscope.exporter.loop import CollectorLoop, Snapshot
from rankscope.exporter.source import GpuSample, Labels, NodeSample
from rankscope.exporter.spool import SpoolSample
from rankscope.exporter.spool_file import SpoolFamily

SIMULATED_COMMENT = b"# SIMULATED: the GPUs on this page are invented (rankscope exporter --simulate).\n"


class _Families:
    """Families of the catalogue, filled series by series and given out in the catalogue's order."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        family = self._families.get(name)
        if family is None:
            row = BY_NAME[name]
            family = self._families[name] = Family(name.removesuffix("_total"), row.help, row.type)
        family.add_sample(name, labels, value)

    def __iter__(self) -> Iterator[Family]:
        return (self._families[row.name] for row in CATALOGUE if row.name in self._families)


@dataclass(frozen=True, slots=True)
class Page:
    """The page of one exporter: a loop per enabled collector, and what identifies this node.

    It has the one method that ``prometheus_client`` asks of a registry.
    """

    host: str
    simulated: bool
    gpu: CollectorLoop[NodeSample] | None
    spool: CollectorLoop[SpoolSample] | None

    def collect(self) -> Iterable[Family]:
        """All families; each name once."""
        families = _Families()
        families.add("rankscope_exporter_build_info", 1, version=version("rankscope"), python_version=platform.python_version())
        families.add("rankscope_exporter_simulated", float(self.simulated))
        if self.gpu is not None:
            gpus = self.gpu.latest()
            _add_health(families, self.gpu.name, gpus)
            _add_gpus(families, gpus, host=self.host, simulated=self.simulated)
        relayed: list[Family] = []
        if self.spool is not None:
            ranks = self.spool.latest()
            _add_health(families, self.spool.name, ranks)
            if ranks.last is not None and ranks.fresh:
                _add_spool(families, ranks.last)
                relayed = [_relayed(family) for family in ranks.last.families]
        yield from families
        yield from relayed

    def problems(self) -> list[tuple[str, str]]:
        """Collectors that give no fresh sample at present, each with the reason."""
        loops: tuple[CollectorLoop[NodeSample] | CollectorLoop[SpoolSample] | None, ...] = (self.gpu, self.spool)
        states = [(loop.name, loop.latest()) for loop in loops if loop is not None]
        return [(name, state.reason) for name, state in states if state.reason is not None]

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page in the format that an Accept header prefers, and its content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # versions that are no numbers cannot be compared
            encode, content_type = choose_encoder("")
        body = encode(self)
        # OpenMetrics has no comments; there the label and the metric have to say it.
        if self.simulated and content_type.startswith("text/plain"):
            body = SIMULATED_COMMENT + body
        return body, content_type


def _add_health(families: _Families, collector: str, snapshot: Snapshot[NodeSample] | Snapshot[SpoolSample]) -> None:
    families.add("rankscope_exporter_collector_success", float(snapshot.ok), collector=collector)
    families.add("rankscope_exporter_collector_duration_seconds", snapshot.duration_s, collector=collector)
    if snapshot.age_s is not None:
        families.add("rankscope_exporter_sample_age_seconds", snapshot.age_s, collector=collector)


def _add_gpus(families: _Families, snapshot: Snapshot[NodeSample], *, host: str, simulated: bool) -> None:
    """Identity and ``gpu_up`` outlive a sample: who a GPU is does not age, and that nothing is heard of it is the news."""
    node = snapshot.last
    if node is None:
        return
    families.add("rankscope_exporter_unidentified_gpus", node.unidentified)
    for gpu in node.gpus:
        identity = gpu.identity
        families.add(
            "gpu_info",
            1,
            uuid=identity.uuid,
            index=str(identity.index),
            model=identity.model,
            pci_bus_id=identity.pci_bus_id,
            **({"serial": identity.serial} if identity.serial else {}),
            driver_version=node.driver_version,
            host=host,
            simulated="true" if simulated else "false",
        )
        families.add("gpu_up", float(gpu.up and snapshot.fresh), uuid=identity.uuid)
        if snapshot.fresh:
            _add_readings(families, gpu)


def _add_readings(families: _Families, gpu: GpuSample) -> None:
    for reading in gpu.readings:
        families.add(reading.metric, reading.value, uuid=gpu.identity.uuid, **dict(reading.labels))
    for absent in gpu.absent:
        metric = _selector(absent.metric, absent.labels)
        families.add("gpu_metric_supported", 0, uuid=gpu.identity.uuid, metric=metric, reason=absent.reason)


def _selector(metric: str, labels: Labels) -> str:
    """``gpu_clock_hertz{clock=sm}``: one clock may be absent while the others are there."""
    return f"{metric}{{{','.join(f'{name}={value}' for name, value in labels)}}}" if labels else metric


def _add_spool(families: _Families, sample: SpoolSample) -> None:
    families.add("rankscope_exporter_spool_files", sample.ok_files, state="ok")
    families.add("rankscope_exporter_spool_files", sample.stale_files, state="stale")
    families.add("rankscope_exporter_spool_files", sum(sample.rejected.values()), state="rejected")
    for reason, count in sorted(sample.rejected.items()):
        families.add("rankscope_exporter_spool_rejected_files", count, reason=reason)
    families.add("rankscope_exporter_spool_duplicate_series", sample.duplicates)
    for (run_id, rank), state in sorted(sample.states.items()):
        families.add("rank_state", 1, run_id=run_id, rank=rank, state=state)


def _relayed(spooled: SpoolFamily) -> Family:
    family = Family(spooled.name.removesuffix("_total"), spooled.help, spooled.type)
    for series in spooled.series:
        family.add_sample(series.name, dict(series.labels), series.value)
    return family
