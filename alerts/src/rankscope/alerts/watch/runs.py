"""What the watcher needs to know about a run before analysing it: has anything changed, and is it over?"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankscope.runs.paths import attempt_dir, rank_dir
from rankscope.runs.reader import RunReader, is_run, is_visible_run
from rankscope.runs.records import RankInfo, RunInfo
from rankscope.runs.segments import list_streams, open_regular

WHOLE_LOOKS: Final = 12
"""So often at the latest the folder is looked through: clocks of file systems are coarse, and some lie."""


@dataclass(frozen=True, slots=True)
class RankSeen:
    """A rank at a moment, as far as names and sizes of its files and ``rank.json`` tell."""

    info: RankInfo | None
    steps: tuple[str, int] | None
    """Name and bytes of the last file with steps; ``None`` before the first."""
    size: int
    """Bytes of all its files, as far as has been looked."""
    readable: bool = True
    """Whether its folder could be looked into, just now: of one that cannot, nothing is known."""


class RankLook:
    """Looks at one rank of an attempt, again and again."""

    __slots__ = ("_attempt", "_changed_ns", "_due", "_folder", "_rank", "_seen", "_steps")

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        self._folder = os.fspath(folder)
        self._attempt = attempt
        self._rank = rank
        self._changed_ns: int | None = None
        self._due = 0
        """Looks until the folder is looked through whatever its time says."""
        self._steps: str | None = None
        self._seen = RankSeen(None, None, 0, readable=False)

    def look(self, reader: RunReader) -> RankSeen:
        """What there is now."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - of a thousand ranks, paths cost more than the calls
            self._due -= 1
            if changed_ns != self._changed_ns:
                self._look_through(reader)
                # Once more next time: what comes within a tick of the file system's clock after this look does not change it.
                self._due, self._changed_ns = 1, changed_ns
            elif self._due <= 0:
                self._look_through(reader)
                self._due = WHOLE_LOOKS + self._rank % WHOLE_LOOKS
            elif self._steps is not None:
                self._grow(os.stat(f"{self._folder}/{self._steps}").st_size)  # noqa: PTH116
        except OSError:
            self._changed_ns = None
            seen = self._seen
            self._seen = RankSeen(reader.rank(self._attempt, self._rank) or seen.info, seen.steps, seen.size, readable=False)
        return self._seen

    def _grow(self, size: int) -> None:
        before = self._seen.steps
        if before is None or before[1] != size:
            more = size - (0 if before is None else before[1])
            self._seen = RankSeen(self._seen.info, (self._steps or "", size), self._seen.size + more)

    def _look_through(self, reader: RunReader) -> None:
        folder = Path(self._folder)
        segments = list_streams(folder, ["steps"])["steps"]
        size, last = 0, 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    of_it = entry.stat(follow_symlinks=False).st_size
                except OSError:  # retention removed it meanwhile
                    continue
                size += of_it
                if segments and entry.name == segments[-1]:
                    last = of_it
        self._steps = segments[-1] if segments else None
        steps = None if self._steps is None else (self._steps, last)
        self._seen = RankSeen(reader.rank(self._attempt, self._rank), steps, size)


RESTART_GRACE_S: Final = 30.0
"""An elastic job starts its next attempt within this time after ranks died; only then is the run over."""
SHOWN: Final = 5
"""Of the files of a run that cannot be read; when a file server is away they are thousands."""


@dataclass(frozen=True, slots=True)
class Glance:
    """A run at a moment, as far as file sizes and ``rank.json`` tell."""

    run_id: str
    content: tuple[int, int, int]
    """Changes whenever a record is written: attempts, ranks, bytes of the last attempt."""
    ended: bool
    info: RunInfo = field(compare=False)
    ranks: Mapping[int, RankSeen] = field(default_factory=dict, compare=False)
    """Of the last attempt."""

    @property
    def attempt(self) -> int:
        """Number of the last attempt."""
        return self.content[0]

    @property
    def infos(self) -> dict[int, RankInfo]:
        """Who the ranks are, where that is known."""
        return {rank: seen.info for rank, seen in self.ranks.items() if seen.info is not None}


class Glances:
    """Looks at runs, each again and again."""

    def __init__(self) -> None:
        self._looks: dict[Path, tuple[int, dict[int, RankLook]]] = {}
        self._died_s: dict[Path, tuple[int, float]] = {}
        """Of runs whose ranks have all ended, some by dying: their last attempt, and when that was seen first."""
        self._resting: dict[Path, tuple[int, bool]] = {}
        """Of runs that are over: when their attempts changed, and whether that has been looked into twice."""

    def glance(self, run: Path, *, now_unix_ns: int, elapsed_s: float) -> Glance:
        """Look at a run without reading its records. Raises ``InputError`` for what is no readable run.

        ``elapsed_s``: of a clock that is never set.
        """
        reader = RunReader(run)
        attempts = reader.attempts()
        if not attempts:
            return Glance(reader.info.run_id, (0, 0, 0), ended=False, info=reader.info)
        last = attempts[-1]
        known = self._looks.get(run)
        looks = known[1] if known is not None and known[0] == last else {}
        # Of a rank that cannot be looked at nothing is known; that is for the analysis to say, of the others as well.
        looks = {rank: looks.get(rank) or RankLook(rank_dir(run, last, rank), last, rank) for rank in reader.ranks(last)}
        self._looks[run] = (last, looks)
        seen = {rank: look.look(reader) for rank, look in looks.items()}
        ended = self._ended(run, last, [one.info for one in seen.values()], now_unix_ns, elapsed_s)
        content = (last, len(seen), sum(one.size for one in seen.values()))
        return Glance(reader.info.run_id, content, ended=ended, info=reader.info, ranks=seen)

    def is_resting(self, run: Path, attempt: int) -> bool:
        """Whether ``attempt`` of a run that is over is its last still. Raises ``InputError`` and ``OSError``.

        Of thousands of runs that are history, most looks ask the system for one thing.
        """
        changed_ns = attempt_dir(run, 0).parent.stat().st_mtime_ns
        known = self._resting.get(run)
        if known == (changed_ns, True):
            return True
        attempts = RunReader(run).attempts()
        # What comes within a tick of the file system's clock after this look does not change the time: looked into once more.
        self._resting[run] = (changed_ns, known is not None and known[0] == changed_ns)
        return bool(attempts) and attempts[-1] == attempt

    def keep(self, runs: Collection[Path]) -> None:
        """Remember nothing of other runs than these."""
        self._looks = {run: looks for run, looks in self._looks.items() if run in runs}
        self._died_s = {run: died for run, died in self._died_s.items() if run in runs}

    def _ended(self, run: Path, attempt: int, ranks: list[RankInfo | None], now_unix_ns: int, elapsed_s: float) -> bool:
        """Whether every rank that reported has ended, and no restart is to be expected."""
        ends = [rank.end_unix_ns if rank is not None else None for rank in ranks]
        known = [end for end in ends if end is not None]
        if not known or len(known) < len(ends):
            return False
        if not any(rank is not None and rank.end_reason in ("crash", "killed") for rank in ranks):
            return True
        if self._died_s.get(run, (None,))[0] != attempt:
            self._died_s[run] = (attempt, elapsed_s)
        # The second for hosts whose clocks are ahead, the first for what was over before anybody looked.
        return now_unix_ns - max(known) >= RESTART_GRACE_S * 1e9 or elapsed_s - self._died_s[run][1] >= RESTART_GRACE_S


def discover(path: Path) -> list[Path]:
    """``path`` if it is a run, else the runs directly inside it, by name. Raises ``OSError`` if ``path`` cannot be looked into.

    A folder inside it that cannot be looked into is nobody's business here: it does not count as a run.
    """
    if is_run(path):
        return [path]
    return sorted(entry for entry in path.iterdir() if is_visible_run(entry))


def why_unreadable(path: Path) -> str:
    """What the system says to whoever opens a file or folder of which nothing could be read."""
    try:
        if path.suffix:
            open_regular(path).close()
        else:
            os.scandir(path).close()
    except OSError as error:
        return error.strerror or str(error)
    return "damaged"


class Unreadable:
    """Says once of everything in runs that cannot be read what it is, and why; again when it could be read in between."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._known: dict[Path, frozenset[str]] = {}

    def report(self, run: Path, paths: Sequence[str]) -> None:
        """``paths`` inside of ``run`` cannot be read this time."""
        known = self._known.get(run, frozenset())
        everything = set(paths)
        new = [path for path in paths if path not in known and everything.isdisjoint(map(str, Path(path).parents))]
        for path in new[:SHOWN]:
            self._report(f"{run / path}: {why_unreadable(run / path)}; left out, the rest of the run is followed")
        if len(new) > SHOWN:
            self._report(f"{run}: {len(new) - SHOWN} more files and folders cannot be read, and are left out")
        self._known[run] = frozenset(paths)

    def keep(self, runs: Collection[Path]) -> None:
        """These go on; nothing of any other run need be kept."""
        self._known = {run: known for run, known in self._known.items() if run in runs}


def ranks_within(run: Path, attempt: int, paths: Iterable[str]) -> set[int]:
    """Ranks of ``attempt`` that ``paths`` inside of the run belong to."""
    folder = rank_dir(run, attempt, 0).parent
    inside = [(run / path).relative_to(folder).parts for path in paths if (run / path).is_relative_to(folder)]
    return {int(parts[0]) for parts in inside if parts and parts[0].isdecimal()}
