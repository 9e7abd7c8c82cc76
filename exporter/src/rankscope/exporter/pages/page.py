"""From what the collectors know to the metric families of one page."""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rankscope.base.exposition import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    Family,
    Point,
    PointSource,
    exposition_text,
    has_unique_openmetrics_names,
    openmetrics,
    prefers_openmetrics,
)
from rankscope.base.version import VERSION
from rankscope.exporter.catalogue import BY_NAME, CATALOGUE, COLLECTORS, DEFAULT_COLLECTORS, CatalogueMetric
from rankscope.exporter.loop import CollectorLoop, CollectorState
from rankscope.exporter.source import Fleet, FleetState, GpuState, Labels, Reading, Series
from rankscope.exporter.spool.reading import SpoolSample

logger = logging.getLogger(__name__)

SIMULATED_COMMENT: Final = b"# SIMULATED: the GPUs on this page are not real (rankscope exporter --simulate).\n"


_NOT_OF_ONE_GPU: Final = ("no_driver", "library_mismatch", "not_in_driver")

SeriesLoop = CollectorLoop[tuple[Series, ...]]


class MetricsPage:
    """The page of one exporter: its data sources, and the ``collectors`` that are switched on. Thread-safe.

    ``fleet`` is None if no collector reads GPUs. A loop is None if its collector is switched off.
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
        self._gpu_sources: dict[str, PointSource[Reading]] = {}
        self._loop_sources = {name: PointSource(_point_of_series) for name in ("jobs", "xid")}
        self._rank_source = _RankSource()
        self._mig_devices: dict[str, frozenset[str]] = {}
        self._down: frozenset[str] = frozenset()
        self._build: Labels = (("version", VERSION), ("python_version", platform.python_version()), ("host", host))

    @property
    def simulated(self) -> bool:
        """True if the GPUs are simulated."""
        return self.fleet is not None and self.fleet.simulated

    def families(self, collectors: frozenset[str] | None = None) -> list[Family]:
        """Return all families that have series: first the catalogue's in its order, then the ranks'. Names are unique.

        With ``collectors``, return only their families and those about the exporter itself.
        """
        wanted = self.collectors if collectors is None else self.collectors & collectors
        families = _Families(wanted)
        families.add("rankscope_exporter_build_info", 1, self._build)
        families.add("rankscope_exporter_simulated", float(self.simulated), ())
        health = _Health()
        if self.fleet is not None:
            state = self.fleet.state()
            self._mig_devices = {
                gpu.identity.uuid: self._mig_devices.get(gpu.identity.uuid, frozenset())
                if gpu.sample is None  # its jobs keep their MIG devices while the GPU hangs
                else frozenset(device.uuid for device in gpu.sample.mig_devices)
                for gpu in state.gpus
            }
            down = {gpu.identity.uuid for gpu in state.gpus if not gpu.up}
            self._down = frozenset(down).union(*(self._mig_devices[uuid] for uuid in down))
            self._add_node(families, state)
            for gpu in state.gpus:
                self._add_gpu(families, gpu, state)
            health.add_fleet(state, self.collectors)
        relayed: list[Family] = []
        if self.spool is not None:
            ranks = self.spool.latest()
            health.add_loop("spool", ranks)
            if ranks.value is not None:
                _add_spool(families, ranks.value)
                if "spool" in wanted:
                    relayed = [*self._rank_source.families(ranks.value)]
        for loop in (self.jobs, self.xid):
            if loop is not None:
                snapshot = loop.latest()
                health.add_loop(loop.name, snapshot)
                if snapshot.value is not None:
                    series = snapshot.value if loop is not self.jobs else [*self._of_present_devices(snapshot.value)]
                    families.take(self._loop_sources[loop.name].points(series))
        health.into(families, wanted)
        return [*families.in_order(), *relayed]

    def problems(self) -> list[tuple[str, str]]:
        """Return name and reason of each collector and GPU that has no fresh data at present."""
        reasons: list[tuple[str, str]] = []
        if self.fleet is not None:
            state = self.fleet.state()
            if state.problem is not None:
                reasons.append(("gpu", state.problem))
            elif state.driver_answers is False and state.driver_problem is not None:
                reasons.append(("driver", f"new processes cannot use it: {state.driver_problem}"))
            for gpu in state.gpus:
                reasons += _problems(gpu)
            reasons += _unidentified(state)
        for loop in self._loops():
            reason = loop.latest().reason
            if reason is not None:
                reasons.append((loop.name, reason))
        return reasons

    def notes(self) -> list[tuple[str, str]]:
        """Return name and text of what an operator has to know although all data is fresh: rejected files of the spool."""
        ranks = self.spool.latest().value if self.spool is not None else None
        files = ranks.rejected_files if ranks is not None else ()
        return [("spool", f"{file.name} of uid {file.uid} is rejected: {file.reason}") for file in files]

    def render(self, accept: str = "", collectors: frozenset[str] | None = None) -> tuple[bytes, str]:
        """Render the page in the format that an Accept header prefers; return it with its content type."""
        families = self.families(collectors)
        # OpenMetrics has no comments; there, only a label and a metric mark the GPUs as simulated.
        if prefers_openmetrics(accept) and has_unique_openmetrics_names(families):
            return openmetrics(families), OPENMETRICS_TYPE
        body = exposition_text(families)
        return (SIMULATED_COMMENT + body if self.simulated else body), TEXT_TYPE

    def _loops(self) -> Iterator[CollectorLoop[Any]]:
        return (loop for loop in (self.spool, self.jobs, self.xid) if loop is not None)

    def _of_present_devices(self, series: Iterable[Series]) -> Iterator[Series]:
        """Yield the series of jobs that still apply: jobs are read less often than GPUs.

        Left out are MIG devices that no longer exist, and ``gpu_in_use`` of a GPU that is down, where it is unknown.
        """
        present = frozenset().union(*self._mig_devices.values())
        for item in series:
            uuid = next((value for name, value in item.labels if name == "uuid"), "")
            if (not uuid.startswith("MIG-") or uuid in present) and (item.metric != "gpu_in_use" or uuid not in self._down):
                yield item

    def _add_node(self, families: _Families, state: FleetState) -> None:
        if state.nvswitches is not None:
            families.add("nvswitch_devices", state.nvswitches, ())
        for source, count in state.counts.items():
            families.add("gpu_devices", count, (("source", source),))
        families.add("rankscope_exporter_unidentified_gpus", state.unidentified, ())
        families.add("rankscope_exporter_stuck_processes", state.stuck, ())
        for name, holds in (("driver_answers", state.driver_answers), ("inventory_durable", state.inventory_durable)):
            if holds is not None:
                families.add(f"rankscope_exporter_{name}", float(holds), ())
        if state.driver_answers is False and state.driver_problem_reason is not None:
            families.add("rankscope_exporter_driver_problem_info", 1, (("reason", state.driver_problem_reason),))
        if state.driver is not None and state.driver_answers is not False:
            versions = (
                ("driver_version", state.driver.driver_version),
                ("nvml_version", state.driver.nvml_version),
                ("cuda_version", state.driver.cuda_version),
            )
            families.add("rankscope_exporter_driver_info", 1, tuple(pair for pair in versions if pair[1]))

    def _add_gpu(self, families: _Families, gpu: GpuState, state: FleetState) -> None:
        """Add the series of a GPU. Identity and ``gpu_up`` are also shown without a sample, when the GPU is down."""
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
            call = (("call", gpu.call),) if gpu.call else ()
            families.add("gpu_down_info", 1, (*uuid, ("reason", gpu.reason or "nvml_error"), *call))
            if gpu.since_unix_s is not None:
                families.add("gpu_down_since_timestamp_seconds", gpu.since_unix_s, uuid)
        if gpu.sample is None:
            return
        if identity.uuid not in self._gpu_sources:
            self._gpu_sources[identity.uuid] = _source_of_gpu(identity.uuid)
        families.take(self._gpu_sources[identity.uuid].points(gpu.sample.readings))
        for absent in dict.fromkeys(gpu.sample.absent):  # several MIG devices may lack the same metric
            # A single series may be absent: one of the clocks, for example.
            series: Labels = (("series", ",".join(f"{name}={value}" for name, value in absent.labels)),) if absent.labels else ()
            families.add_absent(absent.metric, (*uuid, ("metric", absent.metric), *series, ("reason", absent.reason)))


def _point_of_series(series: Series) -> Point:
    return Point(series.labels, series.value, series.metric)


def _source_of_gpu(uuid: str) -> PointSource[Reading]:
    return PointSource(lambda point: Point((("uuid", point.uuid or uuid), *point.labels), point.value, point.metric))


class _RankSource:
    """The families that the spool relays."""

    def __init__(self) -> None:
        self._sources: dict[str, PointSource[Series]] = {}

    def families(self, sample: SpoolSample) -> Iterator[Family]:
        """Yield a family for each metric of the ranks that has series."""
        before, self._sources = self._sources, {}
        for family in sample.families:
            source = self._sources[family.name] = before.get(family.name) or PointSource(_point_of_series)
            points = source.points(family.series)
            if family.type == "counter":
                # OpenMetrics forbids negative values and NaN for counters.
                points = [point for point in points if point.value >= 0]
            if points:
                yield Family(family.name, family.type, family.help, points=points)


class _Families:
    """Families of the catalogue, filled series by series; those of collectors outside ``wanted`` are left out."""

    _unknown: Final[set[str]] = set()

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted_metrics = wanted
        self._families: dict[str, Family | None] = {}

    def add(self, name: str, value: float, labels: Labels) -> None:
        family = self._family(name)
        if family is not None:
            family.add(labels, value)

    def take(self, points: Iterable[Point]) -> None:
        """Add the points of one source."""
        families = self._families
        for point in points:
            family = families[point.name] if point.name in families else self._family(point.name)  # a call costs twice as much
            if family is not None:
                family.points.append(point)

    def add_absent(self, metric: str, labels: Labels) -> None:
        # An absent metric is reported only if its collector is wanted.
        if self._brings(BY_NAME.get(metric)):
            family = self._families.get(_ABSENT.name)
            if family is None:
                family = self._families[_ABSENT.name] = Family(_ABSENT.name, _ABSENT.type, _ABSENT.help)
            family.add(labels, 1)

    def in_order(self) -> Iterator[Family]:
        return (family for row in CATALOGUE if (family := self._families.get(row.name)) is not None)

    def _family(self, name: str) -> Family | None:
        if name not in self._families:
            self._families[name] = self._begin(name)
        return self._families[name]

    def _begin(self, name: str) -> Family | None:
        row = BY_NAME.get(name)
        if row is None and name not in self._unknown:
            # A bug in one collector must not make the page fail.
            self._unknown.add(name)
            logger.error("%s is not in the catalogue: it is left out", name)
        return Family(row.name, row.type, row.help, row.unit) if row is not None and self._brings(row) else None

    def _brings(self, row: CatalogueMetric | None) -> bool:
        return row is not None and (row.collector in self._wanted_metrics or row.collector == "exporter")


_ABSENT: Final = BY_NAME["gpu_metric_absent_info"]


class _Health:
    """Success, duration and age of each collector, merged from its parts: the GPUs' processes, a loop of its own, or both."""

    def __init__(self) -> None:
        self._ok: dict[str, bool] = {}
        self._duration_s: dict[str, float] = {}
        self._age_s: dict[str, float] = {}

    def add_fleet(self, state: FleetState, enabled: frozenset[str]) -> None:
        """Add the collectors that read GPUs.

        They fail if one of their runs failed, if the fleet reports a problem, or if no GPU answers, not counting released ones. A
        single GPU that does not answer is reported by ``gpu_up``.
        """
        samples = [gpu.sample for gpu in state.gpus if gpu.sample is not None]
        expected = [gpu for gpu in state.gpus if gpu.reason != "released"]
        all_fail = state.problem is not None or bool(expected and not samples)
        for name in enabled:
            if COLLECTORS[name].reads_gpu:
                self._ok[name] = not all_fail
                self._duration_s[name] = 0.0
        for sample in samples:
            for run in sample.runs:
                if run.error is not None:
                    self._ok[run.collector] = False
                if run.duration_s > self._duration_s.get(run.collector, -1.0):
                    self._duration_s[run.collector] = run.duration_s

    def add_loop(self, name: str, snapshot: CollectorState[Any]) -> None:
        self._ok[name] = self._ok.get(name, True) and snapshot.ok
        self._duration_s[name] = max(self._duration_s.get(name, 0.0), snapshot.duration_s)
        if snapshot.age_s is not None:
            self._age_s[name] = snapshot.age_s

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
        yield f"gpu {gpu.identity.uuid}", _reason_text(gpu.reason or "nvml_error", gpu.detail)
    elif gpu.sample is not None:
        for run in gpu.sample.runs:
            if run.error is not None:
                yield run.collector, f"{gpu.identity.uuid}: {run.error}"


def _unidentified(state: FleetState) -> Iterator[tuple[str, str]]:
    """Yield the GPUs that have not been identified.

    GPUs of another driver (a virtual machine's, for example) are left out, and so are all GPUs if no driver is loaded.
    """
    for pci_bus_id, reason, detail in state.unidentified_gpus:
        if reason not in _NOT_OF_ONE_GPU:
            yield f"gpu {pci_bus_id}", f"{_reason_text(reason, detail)}; its identity is unknown"
    nameless = state.unidentified - len(state.unidentified_gpus)
    if nameless > 0 and state.problem is None:
        yield "gpu", f"GPUs that the driver counts, without known identity or address: {nameless}"


def _reason_text(reason: str, detail: str) -> str:
    return reason if not detail else detail if reason in detail else f"{reason}: {detail}"


def _add_spool(families: _Families, sample: SpoolSample) -> None:
    families.add("rankscope_exporter_spool_files", sample.ok_files, (("state", "ok"),))
    families.add("rankscope_exporter_spool_files", sample.stale_files, (("state", "stale"),))
    for reason, count in sorted(sample.rejected.items()):
        families.add("rankscope_exporter_spool_rejected_files", count, (("reason", reason),))
    families.add("rankscope_exporter_spool_duplicate_series", sample.duplicates, ())
    for key, state in sorted(sample.states.items()):
        families.add("rank_state", 1, (("run", key.run), ("rank", key.rank), ("slot", key.slot), ("state", state)))
