"""Runs by id or name. Labels of an alert select one of the known runs; they never become a path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError, RankscopeError
from rankscope.runs.paths import rank_dir, run_file
from rankscope.runs.reader import RunReader, is_visible_run

MAX_RUNS: Final = 10_000
"""Maximum number of folders that are read in a root."""
QUIET_S: Final = 3600.0
"""A run without writes for this long is not live, even if no rank recorded its end."""


class UnmatchedRunError(RankscopeError):
    """No run here matches, or more than one does."""


@dataclass(frozen=True, slots=True)
class RunName:
    """Id and name of a run in an alert. An id suffices; several runs may share a name."""

    run_id: str
    name: str

    @property
    def text(self) -> str:
        """Id, or else name, for messages."""
        return self.run_id or self.name


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run that was found."""

    path: Path
    run_id: str
    name: str
    simulated: bool


def run_named(labels: dict[str, str]) -> RunName | None:
    """Return the run that an alert names; ``None`` if it names none."""
    named = RunName(labels.get("run_id", ""), labels.get("run", ""))
    return named if named.text else None


def unreadable_roots(roots: Sequence[Path]) -> dict[Path, str]:
    """Return those of ``roots`` that cannot be read now, and why."""
    reasons: dict[Path, str] = {}
    for root in roots:
        try:
            os.scandir(root).close()
        except OSError as error:
            reasons[root] = error.strerror or str(error)
    return reasons


class KnownRuns:
    """Runs in ``roots``: each is a run, or a folder of runs. Symbolic links that lead out of a root are ignored."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._read: dict[Path, tuple[tuple[int, int, int], KnownRun]] = {}

    def find(self, named: RunName) -> KnownRun:
        """Find the run with the given id; without an id the only live one with the name. Raises ``UnmatchedRunError``."""
        runs = list(self._all())
        self._read = {path: read for path, read in self._read.items() if path in {run.path for run in runs}}
        unreadable = "".join(f"; {root} cannot be read: {reason}" for root, reason in unreadable_roots(self._roots).items())
        if named.run_id:
            matches = [run for run in runs if run.run_id == named.run_id]
            if len(matches) > 1:
                raise UnmatchedRunError(f"{len(matches)} folders under --runs have this run id")
        else:
            # A name is typically the script's: it does not identify one of several runs, or a run that is over.
            of_name = [run for run in runs if run.name == named.name]
            matches = [run for run in of_name if _is_live(run.path)]
            if unreadable or (of_name and len(matches) != 1):
                raise UnmatchedRunError(f"the alert gives no run_id, and live runs of this name are {len(matches)}{unreadable}")
        if not matches:
            raise UnmatchedRunError(f"this run is not under the receiver's --runs{unreadable}")
        return matches[0]

    def _all(self) -> Iterator[KnownRun]:
        paths: set[Path] = set()
        for root in self._roots:
            for path in self._folders(root):
                if path not in paths and (run := self._read_run(path)) is not None:
                    paths.add(path)
                    yield run

    def _folders(self, root: Path) -> Iterator[Path]:
        try:
            resolved = root.resolve(strict=True)
            if is_visible_run(resolved):
                yield resolved
                return
            with os.scandir(resolved) as entries:
                for entry in islice(entries, MAX_RUNS):
                    path = Path(entry.path)
                    if entry.is_symlink():
                        path = path.resolve()
                        if resolved not in path.parents:
                            continue
                    yield path
        except (OSError, RuntimeError):  # missing now, or a symlink loop
            return

    def _read_run(self, path: Path) -> KnownRun | None:
        try:
            status = run_file(path).stat()
            identity = (status.st_ino, status.st_size, status.st_mtime_ns)
            cached = self._read.get(path)
            if cached is None or cached[0] != identity:
                info = RunReader(path).info
                cached = (identity, KnownRun(path, info.run_id, info.name or "", info.simulated))
                self._read[path] = cached
        except (OSError, InputError):
            return None
        return cached[1]


def _is_live(path: Path) -> bool:
    """Check whether a run has begun and some rank has not ended. A run that cannot be read counts as live."""
    try:
        reader = RunReader(path)
        if not (attempts := reader.attempts()) or not (ranks := reader.ranks(attempts[-1])):
            return False
        # For most old runs one rank shows that they are over, which avoids reading a thousand ranks.
        with os.scandir(rank_dir(path, attempts[-1], ranks[0])) as files:
            written_s = max((file.stat().st_mtime for file in files), default=0.0)
        return time.time() - written_s < QUIET_S and any(
            (info := reader.rank(attempts[-1], rank)) is None or info.end_reason is None for rank in ranks
        )
    except (OSError, InputError):
        return True
