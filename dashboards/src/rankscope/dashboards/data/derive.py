"""What the pages show of a run, worked out once and written into a folder: the analysis, every metric of every step, topology,
samples of the GPUs and what happened to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rankscope.analysis.rank_columns import ALL_METRICS
from rankscope.analysis.result import Analysis
from rankscope.analysis.run_analysis import analysis_of, read_evidence
from rankscope.analysis.run_evidence import RunEvidence
from rankscope.analysis.steps import METRICS, Stored
from rankscope.base.errors import InputError
from rankscope.dashboards.data.blame import BlameBook, blame_book
from rankscope.dashboards.data.brief import Brief, brief_of
from rankscope.dashboards.data.events import Events
from rankscope.dashboards.data.hardware import Hardware, stored
from rankscope.dashboards.data.matrices import RunMatrices
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.samples import EVENTS, Samples, host_clocks, sample_values
from rankscope.dashboards.data.source import Stale
from rankscope.dashboards.data.step_values import imposed_values, window_values
from rankscope.dashboards.data.tiles import Tiles, TileWriter
from rankscope.dashboards.data.topology import Topology, topology_of
from rankscope.dashboards.data.trend import Trend, read_trend, trend_of, write_trend
from rankscope.dashboards.data.whole import read_json, replace_file
from rankscope.dashboards.inert import inert_record

ANALYSIS: Final = "analysis.json"
BRIEF: Final = "brief.json"
BLAME: Final = "blame.json"
STEPS: Final = "steps"
PROFILED: Final = "profiled"
HARDWARE: Final = "hardware"
TOPOLOGY: Final = "topology.json"
TREND: Final = "trend.npz"

Item = TypeVar("Item")
Result = TypeVar("Result")


def derive(run: Path, folder: Path, tell: Tell) -> None:
    """Analyse ``run`` into ``folder``.

    Raises ``RankscopeError`` for what cannot be read, and ``OSError`` for what cannot be written.
    """
    evidence = read_evidence(
        run, report=lambda done, of: tell(Progress("reading the records of all ranks", done, of)), metrics=ALL_METRICS
    )
    tell(Progress("judging"))
    write_analysis(analysis_of(evidence), folder)
    write_blame(evidence, folder)
    tell(Progress("reading the samples of all GPUs"))
    samples = Samples(folder / HARDWARE)
    for host in evidence.reader.hosts():
        samples.add(host, evidence.reader.hardware(host))
    samples.publish(evidence.infos, host_clocks(evidence.infos, evidence.table))
    tell(Progress("writing what the figures are drawn from"))
    write_topology(evidence, folder)
    write_steps(evidence, folder)


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Replace what is there, each file as a whole; names in it are inert from here on."""
    shown = inert_record(analysis)
    for name, content in ((ANALYSIS, shown), (BRIEF, brief_of(shown))):
        replace_file(folder / name, msgspec.json.encode(content))


def write_blame(run: RunEvidence, folder: Path) -> None:
    """Who delayed whom and why."""
    replace_file(folder / BLAME, msgspec.json.encode(blame_book(run)))


def write_topology(run: RunEvidence, folder: Path) -> None:
    """Where the ranks are."""
    about = run.reader.attempt(run.table.attempt)
    topology = topology_of(run.ranks, run.infos, {} if about is None else about.layout)
    replace_file(folder / TOPOLOGY, msgspec.json.encode(inert_record(topology)))


def write_steps(run: RunEvidence, folder: Path) -> None:
    """Every metric of which anything is known; the samples have been written."""
    writer = TileWriter(folder / STEPS)
    writer.fill(run.ranks, run.table.steps, _of_every_step(run, folder / HARDWARE))
    for steps, values in imposed_values(run):
        writer.put("imposed_wait_us", steps, values)
    writer.publish()
    profiled, few = window_values(run), TileWriter(folder / PROFILED)
    few.fill(run.ranks, profiled.steps, profiled.metrics.items())
    few.publish()
    write_trend(trend_of(Tiles(folder / STEPS), profiled.steps), folder / TREND)


def _of_every_step(run: RunEvidence, samples: Path) -> Iterator[tuple[str, Stored]]:
    yield from ((metric, run.table.stored(metric)) for metric in METRICS if run.table.is_known(metric))
    yield from sample_values(samples, run.infos, run.table).items()


@dataclass(frozen=True, slots=True)
class Derived:
    """Reads what ``derive`` wrote."""

    folder: Path
    failure: str | None = None
    """Why nothing newer is there, where something should be."""

    @property
    def version(self) -> str:
        """Changes when something else is written there. Raises ``InputError``."""
        return f"{self.folder} {self._written_unix_ns}"

    @property
    def stale(self) -> Stale | None:
        """Since when it should have been written anew, and why it was not. Raises ``InputError``."""
        return None if self.failure is None else Stale(self._written_unix_ns, self.failure)

    @property
    def _written_unix_ns(self) -> int:
        try:
            return (self.folder / ANALYSIS).stat().st_mtime_ns
        except OSError as error:
            raise InputError(self.folder, f"the cached analysis cannot be read: {error}") from error

    @property
    def is_there(self) -> bool:
        """Whether it has been written."""
        return (self.folder / ANALYSIS).is_file()

    def analysis(self) -> Analysis:
        """The analysis. Raises ``InputError``."""
        return self._decoded(ANALYSIS, Analysis)

    def brief(self) -> Brief:
        """The line about it. Raises ``InputError``."""
        return self._decoded(BRIEF, Brief)

    def blame(self) -> BlameBook:
        """Who delayed whom and why. Raises ``InputError``."""
        return self._decoded(BLAME, BlameBook)

    def steps(self) -> RunMatrices:
        """The matrices. Raises ``InputError``."""
        return RunMatrices(Tiles(self.folder / STEPS), Tiles(self.folder / PROFILED))

    def trend(self) -> Trend:
        """All ranks together, step by step. Raises ``InputError``."""
        return read_trend(self.folder / TREND)

    def topology(self) -> Topology:
        """Where the ranks are. Raises ``InputError``."""
        return self._decoded(TOPOLOGY, Topology)

    def hardware(self) -> Hardware:
        """GPUs and their samples. Raises ``InputError``."""
        return stored(self.folder / HARDWARE)

    def events(self) -> Events:
        """What happened to GPUs. Raises ``InputError``."""
        return self._decoded(f"{HARDWARE}/{EVENTS}", Events)

    def _decoded(self, name: str, kind: type[Result]) -> Result:
        return read_json(self.folder / name, kind, "the cached analysis")
