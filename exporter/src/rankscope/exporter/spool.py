"""The spool: the text files the ranks of this node leave for the exporter, merged into one consistent set."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.exporter.spool_file import Labels, RejectedError, SpoolFamily, SpoolFile, SpoolSeries, parse, read_regular
from rankscope.exporter.spool_folder import SpoolFolder, foreign_hand

MAX_FILES: Final = 1024
MAX_SERIES_OF_USER: Final = 8000
_MAX_ENTRIES: Final = 8 * MAX_FILES
_MAX_FUTURE_S: Final = 60.0
# What stays true of a silent rank: who and where it is, and when it was last heard of. An alert needs both.
_KEPT_OF_SILENT: Final = frozenset({"rank_info", "rank_last_step_timestamp_seconds"})
_SUFFIX: Final = ".prom"

State = Literal["running", "silent"]


class SpoolError(Exception):
    """The folder itself cannot be read or trusted; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class SpoolSample:
    """What the ranks of this node published.

    ``states``: (run id, rank) → running or silent. ``rejected``: reason → files. ``duplicates``: series left out because an
    earlier one has the same name and labels.
    """

    families: tuple[SpoolFamily, ...]
    states: dict[tuple[str, str], State]
    ok_files: int
    stale_files: int
    rejected: dict[str, int]
    duplicates: int


def empty_sample() -> SpoolSample:
    """What a folder without files holds."""
    return SpoolSample(families=(), states={}, ok_files=0, stale_files=0, rejected={}, duplicates=0)


@dataclass(frozen=True, slots=True)
class _Cached:
    """A file's content is parsed once: (inode, size, mtime) tells whether it is still the same."""

    key: tuple[int, int, int]
    owner: int
    outcome: SpoolFile | str


@dataclass(slots=True)
class _Seen:
    """What one reading of the folder has met so far: parsed files by name, users' series, run ids' users."""

    cache: dict[str, _Cached] = field(default_factory=dict)
    series_of_user: Counter[int] = field(default_factory=Counter)
    owners: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Merge:
    """Families by name, with no series twice."""

    families: dict[str, tuple[SpoolFamily, list[SpoolSeries]]] = field(default_factory=dict)
    seen: set[tuple[str, Labels]] = field(default_factory=set)
    duplicates: int = 0

    def add(self, family: SpoolFamily) -> None:
        """Add the series nobody brought before; help and type are the first file's."""
        _, series = self.families.setdefault(family.name, (family, []))
        for one in family.series:
            key = (one.name, one.labels)
            if key in self.seen:
                self.duplicates += 1
            else:
                self.seen.add(key)
                series.append(one)

    def result(self) -> tuple[SpoolFamily, ...]:
        """All families, by name."""
        return tuple(
            SpoolFamily(name, first.type, first.help, tuple(series)) for name, (first, series) in sorted(self.families.items())
        )


class Spool:
    """Reads ``*.prom`` files of ``folder`` each time it is asked; ``now`` returns unix seconds.

    A file older than ``stale_s`` says that its rank is silent: of its series only identity and time of the last step are kept.
    After ``forget_s`` the file is ignored. Of two files for the same series the fresher one counts, and a run belongs to the user
    whose file mentioned it first. Freshest first, each user's files are read until they are too many. A private folder is read
    only as long as nobody else can put files into it.
    """

    def __init__(self, folder: SpoolFolder, *, stale_s: float, forget_s: float, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._stale_s = stale_s
        self._forget_s = forget_s
        self._now = now
        self._cache: dict[str, _Cached] = {}
        self._owners: dict[str, int] = {}

    def read(self) -> SpoolSample:
        """All files as they are now; raises ``SpoolError`` when the folder cannot be read, or not be trusted."""
        path = self._folder.path
        try:
            if self._folder.private and (reason := foreign_hand(path.parent, path)) is not None:
                raise SpoolError(f"{reason}; it is not read: remove it, or name another folder with --spool")
            folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SpoolError(f"{path}: {error.strerror}") from error
        try:
            return self._read(folder_fd)
        finally:
            os.close(folder_fd)

    def _read(self, folder_fd: int) -> SpoolSample:
        rejected: Counter[str] = Counter()
        files: list[tuple[float, SpoolFile]] = []
        seen = _Seen()
        now = self._now()
        for name, status in self._entries(folder_fd):
            age_s = now - status.st_mtime
            if age_s > self._forget_s:
                continue
            try:
                files.append((age_s, self._accept(name, status, age_s, folder_fd, seen)))
            except FileNotFoundError:
                continue
            except RejectedError as error:
                rejected[error.reason] += 1
        # A run whose files are all gone may be anybody's again.
        self._cache, self._owners = seen.cache, seen.owners
        return self._merge(files, rejected)

    def _accept(self, name: str, status: os.stat_result, age_s: float, folder_fd: int, seen: _Seen) -> SpoolFile:
        if age_s < -_MAX_FUTURE_S:  # it would never become stale
            raise RejectedError("from_the_future")
        if len(seen.cache) >= MAX_FILES or seen.series_of_user[status.st_uid] >= MAX_SERIES_OF_USER:
            raise RejectedError("too_many_files")
        cached = seen.cache[name] = self._load(name, status, folder_fd)
        if isinstance(cached.outcome, str):
            raise RejectedError(cached.outcome)
        file = cached.outcome
        if seen.owners.setdefault(file.run_id, self._owners.get(file.run_id, cached.owner)) != cached.owner:
            raise RejectedError("foreign_owner")
        seen.series_of_user[cached.owner] += sum(len(family.series) for family in file.families)
        return file

    def _entries(self, folder_fd: int) -> list[tuple[str, os.stat_result]]:
        """Names and status of the candidates, freshest first."""
        found = []
        with os.scandir(folder_fd) as entries:
            for entry in itertools.islice(entries, _MAX_ENTRIES):
                if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.name, entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda one: (-one[1].st_mtime_ns, one[0]))

    def _load(self, name: str, status: os.stat_result, folder_fd: int) -> _Cached:
        cached = self._cache.get(name)
        if cached is not None and cached.key == (status.st_ino, status.st_size, status.st_mtime_ns):
            return cached
        content, status = read_regular(name, folder_fd)
        outcome: SpoolFile | str
        try:
            outcome = parse(content)
        except RejectedError as error:
            outcome = error.reason
        return _Cached((status.st_ino, status.st_size, status.st_mtime_ns), status.st_uid, outcome)

    def _merge(self, files: list[tuple[float, SpoolFile]], rejected: Counter[str]) -> SpoolSample:
        merge = _Merge()
        states: dict[tuple[str, str], State] = {}
        stale_files = 0
        for age_s, file in files:
            stale = age_s > self._stale_s
            stale_files += stale
            states.setdefault((file.run_id, file.rank), "silent" if stale else "running")
            for family in file.families:
                if not stale or family.name in _KEPT_OF_SILENT:
                    merge.add(family)
        return SpoolSample(merge.result(), states, len(files) - stale_files, stale_files, dict(rejected), merge.duplicates)
