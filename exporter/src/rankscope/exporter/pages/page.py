"""From what the collectors know to the metric families of one page."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE, COLLECTORS
from rankscope.exporter.loop import CollectorLoop
from rankscope.exporter.pages.exposition import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    Family,
    Renderer,
    openmetrics_can_say,
    prefers_openmetrics,
)
from rankscope.exporter.source import Fleet, FleetState, GpuState, Labels, Series
from rankscope.exporter.spool.reading import SpoolSample

logger = logging.getLogger(__name__)

SIMULATED_COMMENT: Final = b"# SIMULATED: the GPUs on this page are invented (rankscope exporter --simulate).\n"

DEFAULT_COLLECTORS: Final = frozenset(collector.name for collector in COLLECTORS.values() if collector.default_on)

SeriesLoop = CollectorLoop[tuple[Series, ...]]


class Page:
    """The page of one exporter: who knows what on this node, and which ``collectors`` are switched on. Any thread may ask.

    ``fleet`` is None when no GPU is asked; the loops are None when they are switched off.
    """

    def __init__(
        self,
        host: str,
        fleet: Fleet | None,
        *,
        spool: CollectorLoop[SpoolSample] | None = None,
        jobs: SeriesLoop | None = None,
        xid: SeriesLoop | None = None,
        collectors: frozenset[str] = DEFAULT_COLLECTORS,
    ) -> None:
        self.host = host
        self.fleet = fleet
        self.spool = spool
        self.jobs = jobs
        self.xid = xid
        self.collectors = collectors
        self._renderer = Renderer()
        self._build: Labels = (("version", version("rankscope")), ("python_version", platform.python_version()))

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are invented."""
        return self.fleet is not None and self.fleet.simulated

    def families(self, collectors: frozenset[str] | None = None) -> list[Family]:
        """All families that have series, each name once, in the catalogue's order, then the ranks' own.

        With ``collectors``, only what these bring, and what the exporter says about itself.
        """
        wanted = self.collectors if collectors is None else self.collectors & collectors
        families = _Families(wanted)
        families.add("rankscope_exporter_build_info", 1, self._build)
        families.add("rankscope_exporter_simulated", float(self.simulated), ())
        health = _Health()
        if self.fleet is not None:
            state = self.fleet.state()
            self._add_node(families, state)
            for gpu in state.gpus:
                self._add_gpu(families, gpu, state)
            health.add_fleet(state, self.collectors)
        relayed: list[Family] = []
        if self.spool is not None:
            ranks = self.spool.latest()
            health.add_loop("spool", ok=ranks.ok, duration_s=ranks.duration_s, age_s=ranks.age_s)
            if ranks.last is not None and ranks.fresh:
                _add_spool(families, ranks.last)
                if "spool" in wanted:
                    relayed = list(_relayed(ranks.last))
        for loop in (self.jobs, self.xid):
            if loop is not None:
                known = loop.latest()
                health.add_loop(loop.name, ok=known.ok, duration_s=known.duration_s, age_s=known.age_s)
                if known.last is not None and known.fresh:
                    for one in known.last:
                        families.add(one.metric, one.value, one.labels)
        health.into(families, wanted)
        return [*families.in_order(), *relayed]

    def problems(self) -> list[tuple[str, str]]:
        """What gives no fresh data at present (a collector, or a GPU), each with the reason."""
        found: list[tuple[str, str]] = []
        if self.fleet is not None:
            state = self.fleet.state()
            if state.problem is not None:
                found.append(("gpu", state.problem))
            for gpu in state.gpus:
                found += _problems(gpu)
        for loop in self._loops():
            reason = loop.latest().reason
            if reason is not None:
                found.append((loop.name, reason))
        return found

    def render(self, accept: str = "", collectors: frozenset[str] | None = None) -> tuple[bytes, str]:
        """The page in the format that an Accept header prefers, and its content type."""
        families = self.families(collectors)
        # OpenMetrics has no comments; there the label and the metric have to say that GPUs are invented.
        if prefers_openmetrics(accept) and openmetrics_can_say(families):
            return self._renderer.openmetrics(families), OPENMETRICS_TYPE
        body = self._renderer.text(families)
        return (SIMULATED_COMMENT + body if self.simulated else body), TEXT_TYPE

    def _loops(self) -> Iterator[CollectorLoop[Any]]:
        return (loop for loop in (self.spool, self.jobs, self.xid) if loop is not None)

    def _add_node(self, families: _Families, state: FleetState) -> None:
        if state.nvswitches is not None:
            families.add("nvswitch_devices", state.nvswitches, ())
        for source, count in state.counts.items():
            families.add("node_gpus", count, (("source", source),))
        families.add("rankscope_exporter_unidentified_gpus", state.unidentified, ())
        families.add("rankscope_exporter_stuck_processes", state.stuck, ())
        if state.driver is not None:
            versions = (
                ("driver_version", state.driver.driver_version),
                ("nvml_version", state.driver.nvml_version),
                ("cuda_version", state.driver.cuda_version),
            )
            families.add("rankscope_exporter_driver_info", 1, tuple(pair for pair in versions if pair[1]))

    def _add_gpu(self, families: _Families, gpu: GpuState, state: FleetState) -> None:
        """Identity and ``gpu_up`` outlive a sample: who a GPU is does not age, and that nothing is heard of it is the news."""
        identity = gpu.identity
        uuid: Labels = (("uuid", identity.uuid),)
        info = (
            ("uuid", identity.uuid),
            ("index", str(identity.index)),
            ("model", identity.model),
            ("pci_bus_id", identity.pci_bus_id),
            ("serial", identity.serial),
            ("vbios_version", identity.vbios_version),
            ("driver_version", state.driver.driver_version if state.driver else None),
            ("host", self.host),
            ("simulated", "true" if self.simulated else "false"),
        )
        families.add("gpu_info", 1, tuple((name, value) for name, value in info if value))
        families.add("gpu_up", float(gpu.up), uuid)
        families.add("rankscope_exporter_gpu_process_restarts_total", gpu.restarts, uuid)
        if gpu.age_s is not None:
            families.add("gpu_sample_age_seconds", round(gpu.age_s, 6), uuid)
        if not gpu.up:
            families.add("gpu_down_info", 1, (*uuid, ("reason", gpu.reason or "nvml_error")))
            if gpu.since_unix_s is not None:
                families.add("gpu_down_since_timestamp_seconds", gpu.since_unix_s, uuid)
        if gpu.sample is None:
            return
        for reading in gpu.sample.readings:
            whose = (("uuid", reading.uuid),) if reading.uuid else uuid
            families.add(reading.metric, reading.value, whose + reading.labels if reading.labels else whose)
        for absent in gpu.sample.absent:
            metric = _selector(absent.metric, absent.labels)
            families.add_absent(absent.metric, (*uuid, ("metric", metric), ("reason", absent.reason)))


class _Families:
    """Families of the catalogue, filled series by series; those of collectors that are not ``wanted`` are left out."""

    _unknown: Final[set[str]] = set()

    def __init__(self, wanted: frozenset[str]) -> None:
        self._families = {
            row.name: Family(row.name, row.type, row.help, row.unit)
            for row in CATALOGUE
            if row.collector in wanted or row.collector == "exporter"
        }
        # A collector's absent metrics are its own news.
        self._absent = Family(_ABSENT.name, _ABSENT.type, _ABSENT.help)
        self._families[_ABSENT.name] = self._absent

    def add(self, name: str, value: float, labels: Labels) -> None:
        family = self._families.get(name)
        if family is not None:
            family.series[labels] = value
        elif name not in BY_NAME and name not in self._unknown:
            # One collector's slip must not cost the page of all.
            self._unknown.add(name)
            logger.error("%s is not in the catalogue: it is left out", name)

    def add_absent(self, metric: str, labels: Labels) -> None:
        if metric in self._families:
            self._absent.series[labels] = 0

    def in_order(self) -> Iterator[Family]:
        known = self._families
        return (known[row.name] for row in CATALOGUE if row.name in known and known[row.name].series)


_ABSENT: Final = BY_NAME["gpu_metric_supported"]


class _Health:
    """How each collector does, put together from all who take part in it: every GPU's process, a loop of its own, or both."""

    def __init__(self) -> None:
        self._ok: dict[str, bool] = {}
        self._duration_s: dict[str, float] = {}
        self._age_s: dict[str, float] = {}

    def add_fleet(self, state: FleetState, enabled: frozenset[str]) -> None:
        """A GPU that is not up says so in ``gpu_up`` and costs no collector its success, unless no GPU is up."""
        samples = [gpu.sample for gpu in state.gpus if gpu.sample is not None]
        hopeless = state.problem is not None or bool(state.gpus and not samples)
        for name in enabled:
            if COLLECTORS[name].asks_gpu:
                self._ok[name] = not hopeless
                self._duration_s[name] = 0.0
        for sample in samples:
            for run in sample.runs:
                self._ok[run.collector] = self._ok.get(run.collector, True) and run.error is None
                self._duration_s[run.collector] = max(self._duration_s.get(run.collector, 0.0), run.duration_s)

    def add_loop(self, name: str, *, ok: bool, duration_s: float, age_s: float | None) -> None:
        self._ok[name] = self._ok.get(name, True) and ok
        self._duration_s[name] = max(self._duration_s.get(name, 0.0), duration_s)
        if age_s is not None:
            self._age_s[name] = age_s

    def into(self, families: _Families, wanted: frozenset[str]) -> None:
        for name in COLLECTORS:
            if name in wanted and name in self._ok:
                labels: Labels = (("collector", name),)
                families.add("rankscope_exporter_collector_success", float(self._ok[name]), labels)
                families.add("rankscope_exporter_collector_duration_seconds", round(self._duration_s[name], 6), labels)
                if name in self._age_s:
                    families.add("rankscope_exporter_sample_age_seconds", round(self._age_s[name], 6), labels)


def _problems(gpu: GpuState) -> Iterator[tuple[str, str]]:
    if not gpu.up:
        reason, detail = gpu.reason or "nvml_error", gpu.detail
        told = reason if not detail else detail if reason in detail else f"{reason}: {detail}"
        yield f"gpu {gpu.identity.uuid}", told
    elif gpu.sample is not None:
        for run in gpu.sample.runs:
            if run.error is not None:
                yield run.collector, f"{gpu.identity.uuid}: {run.error}"


def _selector(metric: str, labels: Labels) -> str:
    """``gpu_clock_hertz{clock=sm}``: one clock may be absent while the others are there."""
    return f"{metric}{{{','.join(f'{name}={value}' for name, value in labels)}}}" if labels else metric


def _add_spool(families: _Families, sample: SpoolSample) -> None:
    files = {"ok": sample.ok_files, "stale": sample.stale_files, "rejected": sum(sample.rejected.values())}
    for state, count in files.items():
        families.add("rankscope_exporter_spool_files", count, (("state", state),))
    for reason, count in sorted(sample.rejected.items()):
        families.add("rankscope_exporter_spool_rejected_files", count, (("reason", reason),))
    families.add("rankscope_exporter_spool_duplicate_series", sample.duplicates, ())
    for (run_id, rank), state in sorted(sample.states.items()):
        families.add("rank_state", 1, (("run_id", run_id), ("rank", rank), ("state", state)))


def _relayed(sample: SpoolSample) -> Iterable[Family]:
    for spooled in sample.families:
        family = Family(spooled.name, spooled.type, spooled.help)
        for series in spooled.series:
            # OpenMetrics forbids both below zero and NaN for counters, and no clock or count is either.
            if spooled.type == "gauge" or series.value >= 0:
                family.series[series.labels] = series.value
        if family.series:
            yield family
