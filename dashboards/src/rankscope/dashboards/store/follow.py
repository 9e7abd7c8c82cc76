"""Follower of a live run, in a separate process: reads new records and writes the derived data that the pages show.

It runs for as long as the run is live and viewers keep requesting it (``Live.look``). Servers read its files.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.rank_columns import RankColumns
from rankscope.analysis.inference.run_evidence import RunEvidence
from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.run_analysis import analysis_of
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.data.trend import Trend
from rankscope.dashboards.data.whole import replace_file
from rankscope.dashboards.store.derive import (
    HARDWARE,
    PROFILED,
    STEPS,
    publish_steps,
    write_analysis,
    write_blame,
    write_steps,
    write_topology,
)
from rankscope.dashboards.store.footprint import footprint
from rankscope.dashboards.store.jobs import FAILURE_LASTS_S, ended_silently, in_words, start, take
from rankscope.dashboards.store.samples import Samples, sample_values
from rankscope.dashboards.store.tiles import TileWriter
from rankscope.runs.follow import StartOverError, StreamFollower
from rankscope.runs.paths import host_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample

NOBODY_LOOKS_S: Final = 60.0
_LEAST_PAUSE_S: Final = 1.0
_PAUSE_FACTOR: Final = 4.0
"""Pause after an update, in multiples of the update's duration: so a run of thousands of ranks does not keep a core busy."""

_SEEN: Final = "seen.json"
_LOOKED: Final = "looked"
_LOCK: Final = "lock"
_BEGUN: Final = "begun"
"""File that exists from the start until the first update. Without a running follower: the last one was killed or failed."""


class Seen(msgspec.Struct, frozen=True):
    """Revision of the run's files that the folder shows; ``failure``: why the last read failed."""

    revision: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """A live run, and the folder into which it is followed."""

    folder: Path
    run: Path

    def look(self) -> Seen | None:
        """Start a follower if none runs. Return the folder's state, ``None`` before the first update. Raises ``OSError``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / _LOOKED).touch()
        with contextlib.ExitStack() as held:
            if (lock := take(self.folder / _LOCK, held)) is not None:
                if self._failed_at_once():
                    return self.seen() or Seen("", ended_silently("what follows this run", self.folder))
                (self.folder / _BEGUN).touch()
                start(__name__, [self.folder, self.run], locks=[lock])
        return self.seen()

    def _failed_at_once(self) -> bool:
        """Return whether the last follower started recently and ended without an update, so that a new one would fail too."""
        with contextlib.suppress(OSError):
            return time.time() - (self.folder / _BEGUN).stat().st_mtime < FAILURE_LASTS_S
        return False

    def seen(self) -> Seen | None:
        """Return the state of the folder without starting a follower."""
        try:
            return msgspec.json.decode((self.folder / _SEEN).read_bytes(), type=Seen)
        except (OSError, ValueError):
            return None

    def follow(self) -> None:
        """Update the folder until no viewer has requested the run for ``NOBODY_LOOKS_S``."""
        followed = Following(self.run, self.folder)
        (self.folder / _SEEN).unlink(missing_ok=True)  # of the previous follower: matrices begin anew
        with contextlib.suppress(KeyboardInterrupt):
            pause_factor = 0.0  # the first read of everything does not predict the duration of later updates
            while self._somebody_looks():
                began = time.monotonic()
                self.update(followed)
                (self.folder / _BEGUN).unlink(missing_ok=True)
                time.sleep(max(_LEAST_PAUSE_S, pause_factor * (time.monotonic() - began)))
                pause_factor = _PAUSE_FACTOR
        (self.folder / _BEGUN).unlink(missing_ok=True)

    def _somebody_looks(self) -> bool:
        with contextlib.suppress(OSError):
            return time.time() - (self.folder / _LOOKED).stat().st_mtime < NOBODY_LOOKS_S
        return False

    def update(self, followed: Following) -> None:
        """Bring the folder up to date with the run's files, or record why that failed."""
        revision = footprint(self.run).revision
        if (before := self.seen()) is not None and before.revision == revision:
            return
        failure: str | None = None
        try:
            followed.update()
        except (RankscopeError, OSError, MemoryError) as error:
            failure = in_words(error)  # the run is being moved or written: keep the folder and retry
        except Exception as error:
            failure = f"this run cannot be followed: an error in rankscope ({type(error).__name__}); its log says more"
            raise
        finally:
            replace_file(self.folder / _SEEN, msgspec.json.encode(Seen(revision, failure)))


class Following:
    """State of a follower: the run's analysis so far, and the folder it is written to."""

    def __init__(self, run: Path, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._tiles = _Tiles(run, folder)
        self._online = OnlineAnalysis(run, rows=self._tiles)
        self._samples = _HostSamples(folder / HARDWARE)

    def update(self) -> None:
        """Read new records and write the derived data, the analysis last. Raises ``RankscopeError``."""
        run = self._online.read()
        analysis = analysis_of(run)
        samples = self._samples.read(run.reader)
        samples.publish(run.infos, self._tiles.clocks)
        if self._tiles.writer is None:  # there is no attempt yet
            write_steps(run, self._folder)
        else:
            self._tiles.publish(run)
        write_topology(run, self._folder)
        write_blame(run, self._folder)
        write_analysis(analysis, self._folder)


class _Tiles:
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
            self._starts[rank] = [(np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts]))]
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
        self._trend = publish_steps(run, self._folder, self.writer, self._profiled, before=self._trend, since=self._since)
        self._since = math.inf


class _HostSamples:
    """Follower of the samples of all hosts: each update reads the new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._samples = Samples(self._folder)
        self._hosts: dict[str, StreamFollower[HardwareSample]] = {}

    def read(self, reader: RunReader) -> Samples:
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


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    Live(Path(sys.argv[1]), Path(sys.argv[2])).follow()
