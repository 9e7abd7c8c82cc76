"""Derived data of a run, computed once and written into a folder for the pages: the analysis, every metric of every step,
topology, GPU samples and GPU events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS
from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable, Stored
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.run_analysis import analysis_of, read_evidence
from rankscope.base.atomic_files import replace_file
from rankscope.base.errors import InputError
from rankscope.base.process import collector_paused
from rankscope.dashboards.data.brief import Brief, brief_of
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.events import HardwareEvents
from rankscope.dashboards.data.hardware import read_hardware
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.data.script import read_script, script_of, write_script
from rankscope.dashboards.data.source import Stale
from rankscope.dashboards.data.topology import Topology, topology_of
from rankscope.dashboards.data.trend import Trend, read_trend, trend_of, write_trend
from rankscope.dashboards.delays.data import Delays, delays_of
from rankscope.dashboards.store.matrices import RunMatrices, imposed_values, window_values
from rankscope.dashboards.store.samples import EVENTS, SampleWriter, host_clocks, sample_values
from rankscope.dashboards.store.tiles import Tiles, TileWriter
from rankscope.dashboards.words.inert import inert_record
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES

ANALYSIS: Final = "analysis.json"
BRIEF: Final = "brief.json"
DELAYS: Final = "delays.json"
STEPS: Final = "steps"
PROFILED: Final = "profiled"
HARDWARE: Final = "hardware"
TOPOLOGY: Final = "topology.json"
TREND: Final = "trend.npz"
SCRIPT: Final = "script.npz"


@collector_paused()
def derive(run: Path, folder: Path, on_progress: OnProgress) -> None:
    """Analyse ``run`` and write the result into ``folder``.

    Raises ``RankscopeError`` for unreadable input, and ``OSError`` if the folder cannot be written.
    """
    write_derived(read_run(run, on_progress), folder, on_progress)


@collector_paused()
def read_run(
    run: Path,
    on_progress: OnProgress,
    metrics: Collection[str] = ALL_METRICS,
    on_records: Callable[[RunReader, StepTable], None] | None = None,
) -> RunEvidence:
    """Read ``run`` as ``read_evidence``, with ``metrics``: ``ALL_METRICS`` at least.

    Raises ``RankscopeError`` for unreadable input.
    """

    def report(done: int, of: int) -> None:
        on_progress(Progress("reading the records of all ranks", done, of))

    return read_evidence(run, report=report, metrics=metrics, on_records=on_records)


@collector_paused()
def write_derived(evidence: RunEvidence, folder: Path, on_progress: OnProgress) -> None:
    """Analyse a run that has been read and write the result into ``folder``. Raises as ``derive``."""
    on_progress(Progress("judging"))
    write_analysis(analysis_of(evidence), folder)
    write_delays(evidence, folder)
    on_progress(Progress("reading the samples of all GPUs"))
    samples = SampleWriter(folder / HARDWARE)
    for host in evidence.reader.hosts():
        samples.add(host, evidence.reader.hardware(host))
    samples.publish(evidence.infos, host_clocks(evidence.infos, evidence.table))
    on_progress(Progress("writing what the figures are drawn from"))
    write_topology(evidence, folder)
    write_reports(evidence, folder)
    write_steps(evidence, folder)


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Replace the analysis and its brief, each file atomically. Names from the run are made inert (``inert_record``)."""
    shown = inert_record(analysis)
    for name, content in ((ANALYSIS, shown), (BRIEF, brief_of(shown))):
        replace_file(folder / name, msgspec.json.encode(content), sync=False)


def write_delays(run: RunEvidence, folder: Path) -> None:
    """Write the ``Delays`` of the run."""
    replace_file(folder / DELAYS, msgspec.json.encode(inert_record(delays_of(run))), sync=False)


def write_topology(run: RunEvidence, folder: Path) -> None:
    """Write the topology of the last attempt."""
    about = run.reader.attempt(run.table.attempt)
    topology = topology_of(run.ranks, run.infos, {} if about is None else about.layout)
    replace_file(folder / TOPOLOGY, msgspec.json.encode(inert_record(topology)), sync=False)


def write_reports(run: RunEvidence, folder: Path) -> None:
    """Write the metrics and tags of the script."""
    write_script(script_of(run.reader, run.table.attempt, run.ranks), folder / SCRIPT)


def write_steps(run: RunEvidence, folder: Path) -> None:
    """Write every metric that has any value. The samples must have been written before."""
    writer = TileWriter(folder / STEPS)
    same = {f"own_{phase}_us": f"{phase}_us" for phase in PHASES if run.table.is_same(f"own_{phase}_us", f"{phase}_us")}
    writer.fill(run.ranks, run.table.steps, _of_every_step(run, folder / HARDWARE, without=same), same)
    publish_steps(run, folder, writer, TileWriter(folder / PROFILED))


def publish_steps(
    run: RunEvidence, folder: Path, steps: TileWriter, profiled: TileWriter, *, before: Trend | None = None, since: float = 0
) -> Trend:
    """Add the values from windows, publish the matrices, and write and return the trend."""
    for writer in (steps, profiled):
        writer.add_ranks(run.ranks)
    steps.publish()
    windows = window_values(run)
    profiled.add_steps(windows.steps)
    for metric, matrix in windows.metrics.items():
        profiled.put(metric, windows.steps, matrix)
    profiled.publish()
    trend = trend_of(Tiles(folder / STEPS), Tiles(folder / PROFILED).steps, before=before, since=since)
    write_trend(trend, folder / TREND)
    return trend


def _of_every_step(run: RunEvidence, samples: Path, *, without: Collection[str]) -> Iterator[tuple[str, Stored]]:
    known_metrics = (metric for metric in METRICS if metric not in without and run.table.is_known(metric))
    yield from ((metric, run.table.stored(metric)) for metric in known_metrics)
    yield from sample_values(samples, run.infos, run.table).items()
    if run.compared:
        yield "imposed_wait_us", imposed_values(run)


@dataclass(frozen=True, slots=True)
class DerivedData:
    """Reader of the files that ``derive`` wrote."""

    folder: Path
    failure: str | None = None
    """Reason why the files are older than they should be."""
    waits_for: str | None = None
    """What is being done to replace these files by newer ones."""

    @property
    def version(self) -> str:
        """Version of the files, which changes with their content. Raises ``InputError``."""
        return f"{self.folder} {self._written_unix_ns}"

    @property
    def stale(self) -> Stale | None:
        """Time of the last write and the reason why no newer one followed; ``None``: up to date. Raises ``InputError``."""
        why = self.failure or self.waits_for
        return None if why is None else Stale(self._written_unix_ns, why, is_pending=self.failure is None)

    @property
    def _written_unix_ns(self) -> int:
        try:
            return (self.folder / ANALYSIS).stat().st_mtime_ns
        except OSError as error:
            raise InputError(self.folder, f"the cached analysis cannot be read: {error}") from error

    @property
    def is_there(self) -> bool:
        """True if the analysis has been written."""
        return (self.folder / ANALYSIS).is_file()

    def part(self, name: str) -> Any:
        """Read one of ``PARTS``. Raises ``InputError``."""
        return PARTS[name](self.folder)


def _json(name: str, kind: type[Any]) -> Callable[[Path], Any]:
    return lambda folder: read_json(folder / name, kind, "the cached analysis")


PARTS: Final[Mapping[str, Callable[[Path], Any]]] = {
    "analysis": _json(ANALYSIS, Analysis),
    "brief": _json(BRIEF, Brief),
    "delays": _json(DELAYS, Delays),
    "steps": lambda folder: RunMatrices(Tiles(folder / STEPS), Tiles(folder / PROFILED)),
    "trend": lambda folder: read_trend(folder / TREND),
    "script": lambda folder: read_script(folder / SCRIPT),
    "topology": _json(TOPOLOGY, Topology),
    "hardware": lambda folder: read_hardware(folder / HARDWARE),
    "events": _json(f"{HARDWARE}/{EVENTS}", HardwareEvents),
}
"""Parts of the derived data to their decoders, which raise ``InputError``. ``RunData`` has the type of each."""
