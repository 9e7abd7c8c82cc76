"""What the watcher needs to know about a run before analysing it: has anything changed, and is it over?"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankscope.runs.paths import attempt_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo, RunInfo
from rankscope.runs.segments import list_streams

WHOLE_LOOKS: Final = 12
"""Looks after which a folder is scanned again, because modification times of file systems are coarse or wrong."""


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """State of a rank at a moment, from ``rank.json`` and the names and sizes of its files."""

    info: RankInfo | None
    steps: tuple[str, int] | None
    """Name and bytes of the last file with steps; ``None`` before the first."""
    size: int
    """Bytes of all its files, as last seen."""
    readable: bool = True
    """The folder can be read now; the state of an unreadable rank is unknown."""


class RankObserver:
    """Observer of one rank of an attempt."""

    __slots__ = ("_attempt", "_changed_ns", "_due", "_folder", "_rank", "_state", "_steps")

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        self._folder = os.fspath(folder)
        self._attempt = attempt
        self._rank = rank
        self._changed_ns: int | None = None
        self._due = 0
        """Looks until the folder is scanned regardless of its modification time."""
        self._steps: str | None = None
        self._state = RankSnapshot(None, None, 0, readable=False)

    def snapshot(self, reader: RunReader) -> RankSnapshot:
        """Return the current state."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - for a thousand ranks, Path objects cost more than the calls
            self._due -= 1
            if changed_ns != self._changed_ns:
                self._look_through(reader)
                # Scan again next time: a file added within the same clock tick does not change the modification time.
                self._due, self._changed_ns = 1, changed_ns
            elif self._due <= 0:
                self._look_through(reader)
                self._due = WHOLE_LOOKS + self._rank % WHOLE_LOOKS
            elif self._steps is not None:
                self._grow(os.stat(f"{self._folder}/{self._steps}").st_size)  # noqa: PTH116
        except OSError:
            self._changed_ns = None
            snapshot = self._state
            self._state = RankSnapshot(
                reader.rank(self._attempt, self._rank) or snapshot.info, snapshot.steps, snapshot.size, readable=False
            )
        return self._state

    def _grow(self, size: int) -> None:
        before = self._state.steps
        if before is None or before[1] != size:
            more = size - (0 if before is None else before[1])
            self._state = RankSnapshot(self._state.info, (self._steps or "", size), self._state.size + more)

    def _look_through(self, reader: RunReader) -> None:
        folder = Path(self._folder)
        segments = list_streams(folder, ["steps"])["steps"]
        size, last = 0, 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    file_bytes = entry.stat(follow_symlinks=False).st_size
                except OSError:  # removed by retention
                    continue
                size += file_bytes
                if segments and entry.name == segments[-1]:
                    last = file_bytes
        self._steps = segments[-1] if segments else None
        steps = None if self._steps is None else (self._steps, last)
        self._state = RankSnapshot(reader.rank(self._attempt, self._rank), steps, size)


RESTART_GRACE_S: Final = 30.0
"""Time after ranks died in which an elastic job may start its next attempt; without one, the run is over."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """State of a run at a moment, from file sizes and ``rank.json``."""

    run_id: str
    content: tuple[int, int, int]
    """Number, ranks and bytes of the last attempt; differs after every written record."""
    ended: bool
    info: RunInfo = field(compare=False)
    ranks: Mapping[int, RankSnapshot] = field(default_factory=dict, compare=False)
    """Ranks of the last attempt."""

    @property
    def attempt(self) -> int:
        """Number of the last attempt."""
        return self.content[0]

    @property
    def infos(self) -> dict[int, RankInfo]:
        """``rank.json`` of each rank that has one."""
        return {rank: snapshot.info for rank, snapshot in self.ranks.items() if snapshot.info is not None}


class RunObserver:
    """Observer of runs."""

    def __init__(self) -> None:
        self._observers: dict[Path, tuple[int, dict[int, RankObserver]]] = {}
        self._died_s: dict[Path, tuple[int, float]] = {}
        """Runs whose ranks have all ended, some by a crash or kill: last attempt, and when this was first seen."""
        self._resting: dict[Path, tuple[int, bool]] = {}
        """Runs that are over: modification time of their attempts, and whether that was checked twice."""

    def snapshot(self, run: Path, *, now_unix_ns: int, elapsed_s: float) -> RunSnapshot:
        """Look at a run without reading its records. Raises ``InputError`` for a path that is no readable run.

        ``elapsed_s``: seconds of a monotonic clock.
        """
        reader = RunReader(run)
        attempts = reader.attempts()
        if not attempts:
            return RunSnapshot(reader.info.run_id, (0, 0, 0), ended=False, info=reader.info)
        last = attempts[-1]
        previous = self._observers.get(run)
        observers = previous[1] if previous is not None and previous[0] == last else {}
        # An unreadable rank stays in the result as unknown; the analysis reports why.
        observers = {
            rank: observers.get(rank) or RankObserver(rank_dir(run, last, rank), last, rank) for rank in reader.ranks(last)
        }
        self._observers[run] = (last, observers)
        ranks = {rank: observer.snapshot(reader) for rank, observer in observers.items()}
        ended = self._ended(run, last, [snapshot.info for snapshot in ranks.values()], now_unix_ns, elapsed_s)
        content = (last, len(ranks), sum(snapshot.size for snapshot in ranks.values()))
        return RunSnapshot(reader.info.run_id, content, ended=ended, info=reader.info, ranks=ranks)

    def is_resting(self, run: Path, attempt: int) -> bool:
        """Return whether ``attempt`` is still the last one of a run that is over. Raises ``InputError`` and ``OSError``.

        For thousands of old runs, most looks cost one ``stat`` each.
        """
        changed_ns = attempt_dir(run, 0).parent.stat().st_mtime_ns
        previous = self._resting.get(run)
        if previous == (changed_ns, True):
            return True
        attempts = RunReader(run).attempts()
        # Check once more: an attempt added within the same clock tick does not change the modification time.
        self._resting[run] = (changed_ns, previous is not None and previous[0] == changed_ns)
        return bool(attempts) and attempts[-1] == attempt

    def keep(self, runs: Collection[Path]) -> None:
        """Forget all other runs."""
        self._observers = {run: observers for run, observers in self._observers.items() if run in runs}
        self._died_s = {run: died for run, died in self._died_s.items() if run in runs}

    def _ended(self, run: Path, attempt: int, ranks: list[RankInfo | None], now_unix_ns: int, elapsed_s: float) -> bool:
        """Return whether every rank has ended and no restart is expected."""
        ends = [rank.end_unix_ns if rank is not None else None for rank in ranks]
        recorded = [end for end in ends if end is not None]
        if not recorded or len(recorded) < len(ends):
            return False
        if not any(rank is not None and rank.end_reason in ("crash", "killed") for rank in ranks):
            return True
        if self._died_s.get(run, (None,))[0] != attempt:
            self._died_s[run] = (attempt, elapsed_s)
        # The first test covers runs that ended before the first look, the second hosts whose clocks are ahead.
        return now_unix_ns - max(recorded) >= RESTART_GRACE_S * 1e9 or elapsed_s - self._died_s[run][1] >= RESTART_GRACE_S
