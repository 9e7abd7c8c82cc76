"""Follower of a live run, in a separate process: reads new records and writes the derived data that the pages show."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.rank_columns import RankColumns
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.online import RECENT_WINDOWS, OnlineAnalysis
from rankscope.analysis.run_analysis import analysis_of
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.data.trend import Trend
from rankscope.dashboards.store.cache import error_text
from rankscope.dashboards.store.derive import (
    HARDWARE,
    PROFILED,
    STEPS,
    publish_steps,
    write_analysis,
    write_delays,
    write_reports,
    write_steps,
    write_topology,
)
from rankscope.dashboards.store.footprint import footprint
from rankscope.dashboards.store.matrices import imposed_values
from rankscope.dashboards.store.samples import SampleWriter, sample_values
from rankscope.dashboards.store.tiles import TileWriter
from rankscope.runs.follow import StartOverError, StreamFollower
from rankscope.runs.paths import host_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample

_LEAST_PAUSE_S: Final = 1.0
_PAUSE_FACTOR: Final = 4.0
"""Pause after an update, in multiples of the update's duration: so a run of thousands of ranks does not keep a core busy."""


class Update(msgspec.Struct, frozen=True):
    """Result of an update."""

    revision: str
    """Revision of the run's files (``Footprint``) when the update began."""
    failure: str | None = None
    """Reason why the folder is older than that; one line for the user."""
    is_final: bool = False
    """True if the run has ended and the folder has all that ``derive`` would write."""


def follow(run: Path, folder: Path, report: Callable[[Update], None]) -> NoReturn:
    """Update ``folder`` whenever the files of ``run`` change, and report it."""
    following = FollowerState(run, folder)
    read_revision: str | None = None
    pause_factor = 0.0  # the first read of everything does not predict the duration of later updates
    while True:
        began = time.monotonic()
        if (revision := footprint(run).revision) != read_revision:
            failure = following.failure_of_update()
            read_revision = revision if failure is None else None
            report(Update(revision, failure, failure is None and following.is_final))
            os.utime(folder)  # it is in use
        time.sleep(max(_LEAST_PAUSE_S, pause_factor * (time.monotonic() - began)))
        pause_factor = _PAUSE_FACTOR


class FollowerState:
    """State of a follower: the run's analysis so far, and the folder it is written to."""

    def __init__(self, run: Path, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._tiles = _FollowedTiles(run, folder)
        self._online = OnlineAnalysis(run, rows=self._tiles)
        self._samples = _HostSamples(folder / HARDWARE)
        self.is_final = False
        """True if the run has ended and the last update has written all that ``derive`` would write."""

    def failure_of_update(self) -> str | None:
        """Update the folder. Return why that failed: the run is being moved or written, or the disk is full."""
        try:
            self.update()
        except (RankscopeError, OSError, MemoryError) as error:
            return error_text(error, self._folder)
        return None

    def update(self) -> None:
        """Read new records and write the derived data, the analysis last. Raises ``RankscopeError``."""
        run = self._online.read()
        analysis = analysis_of(run)
        samples = self._samples.read(run.reader)
        samples.publish(run.infos, self._tiles.clocks)
        is_final = _has_ended(run) and _keeps_all(run)
        if self._tiles.writer is None or is_final:  # without an attempt there is no writer; of a few steps all are in memory
            write_steps(run, self._folder)
        else:
            self._tiles.publish(run)
        write_topology(run, self._folder)
        write_reports(run, self._folder)
        write_delays(run, self._folder)
        write_analysis(analysis, self._folder)
        self.is_final = is_final


def _has_ended(run: RunEvidence) -> bool:
    return bool(run.infos) and all(info.end_reason is not None for info in run.infos.values())


def _keeps_all(run: RunEvidence) -> bool:
    """Return whether nothing of the run was too old to be kept in memory."""
    windows = run.windows.values()
    profiled = {row.step for part in windows for row in part.breakdowns} | {
        row.step for part in windows for row in part.collectives
    }
    return run.earlier.steps == 0 and len(profiled) < RECENT_WINDOWS and not run.durations


class _FollowedTiles:
    """Writer of the records of a followed run into its matrices."""

    def __init__(self, run: Path, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._attempt = 0
        self.writer: TileWriter | None = None
        self._profiled = TileWriter(folder / PROFILED)
        self._trend: Trend | None = None
        """Trend of the published steps; ``None`` also if a new rank has appeared since."""
        self._since = math.inf
        """First step that received records since the last publication."""
        self._hosts: dict[int, str] = {}
        """First rank of each host, whose step starts are kept, to its host."""
        self._starts: dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {}

    @property
    def clocks(self) -> dict[str, StepClock]:
        """Step clock of the first rank of each host, over the whole attempt."""
        for rank, parts in self._starts.items():
            self._starts[rank] = [(np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts]))]
        return {self._hosts[rank]: StepClock(*parts[0]) for rank, parts in self._starts.items()}

    def begin(self, attempt: int) -> None:
        """See ``RowReceiver``."""
        self._attempt = attempt
        self._hosts, self._starts = {}, {}
        self.writer = TileWriter(self._folder / STEPS)
        self._profiled = TileWriter(self._folder / PROFILED)
        self._trend, self._since = None, math.inf

    def has_ranks(self, ranks: Sequence[int]) -> None:
        """See ``RowReceiver``."""
        assert self.writer is not None
        new = set(ranks) - set(self.writer.ranks)
        self.writer.add_ranks(ranks)
        if new:
            self._trend = None
        reader = RunReader(self._run)
        for rank in sorted(new):
            info = reader.rank(self._attempt, rank)
            if info is not None and info.host not in self._hosts.values():
                self._hosts[rank] = info.host

    def needs(self, rank: int) -> bool:
        """See ``RowReceiver``."""
        del rank
        return True

    def add(self, rank: int, columns: RankColumns) -> None:
        """See ``RowReceiver``."""
        assert self.writer is not None
        self.writer.add(rank, columns.step, columns.metrics)
        if len(columns.step):
            self._since = min(self._since, int(columns.step.min()))
        if rank in self._hosts:
            self._starts.setdefault(rank, []).append((columns.step, columns.start))

    def publish(self, run: RunEvidence) -> None:
        """Publish the records received so far. Values from comparing ranks, from windows and from samples cover only the steps
        kept for the verdict; earlier steps keep the values published before.
        """
        assert self.writer is not None
        self.writer.add_ranks(run.ranks)
        for metric, matrix in sample_values(self._folder / HARDWARE, run.infos, run.table).items():
            self.writer.put(metric, run.table.steps, matrix)
        if run.compared:
            self.writer.put("imposed_wait_us", run.table.steps, imposed_values(run))
        self._trend = publish_steps(run, self._folder, self.writer, self._profiled, before=self._trend, since=self._since)
        self._since = math.inf


class _HostSamples:
    """Follower of the samples of all hosts: each update reads the new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._samples = SampleWriter(self._folder)
        self._hosts: dict[str, StreamFollower[HardwareSample]] = {}

    def read(self, reader: RunReader) -> SampleWriter:
        """Return all samples so far."""
        try:
            self._take_new(reader)
        except StartOverError:
            self._begin()
            self._take_new(reader)
        return self._samples

    def _take_new(self, reader: RunReader) -> None:
        for host in reader.hosts():
            if host not in self._hosts:
                self._hosts[host] = StreamFollower(host_dir(reader.path, host), "gpu", HardwareSample)
            self._samples.add(host, chain.from_iterable(self._hosts[host].new(reader)))
