"""The spool: the text files the ranks of this node leave for the exporter, merged into one consistent set."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from rankscope.exporter.source import DEFECT, Series
from rankscope.exporter.spool.file import MAX_BYTES, parse, read_regular
from rankscope.exporter.spool.folder import SpoolFolder, untrusted_reason
from rankscope.exporter.spool.incremental_parse import SpoolTemplate
from rankscope.exporter.spool.rejections import RejectedFile, RejectionLog, Rejections
from rankscope.exporter.spool.series import RankKey, RejectedError, SpoolContent, SpoolFamily

MAX_FILES: Final = 1024
MAX_FILES_OF_USER: Final = 512
MAX_SERIES_OF_USER: Final = 12_800
"""A rank has up to 100 series, and a node of 16 GPUs with seven MIG devices each has 112 ranks."""
MAX_BYTES_OF_USER: Final = 4 * 2**20
MAX_CANDIDATES_OF_USER: Final = 4 * MAX_FILES_OF_USER
# Directory entries of any name, which cost little, and candidates (*.prom), which need a stat each.
MAX_NAMES: Final = 2**18
MAX_CANDIDATES: Final = 2**16
_MAX_FUTURE_S: Final = 60.0
# Still valid for a silent rank: its identity, and the time of its last step. Alerts need both.
_KEPT_OF_SILENT: Final = frozenset({"rank_info", "rank_last_step_timestamp_seconds"})
_SUFFIX: Final = ".prom"

State = Literal["running", "disabled", "silent"]


class SpoolError(Exception):
    """The folder itself cannot be read or trusted; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class SpoolSample:
    """Series of all ranks of this node, and statistics of their files.

    ``states``: by rank, ``running`` (fresh file), ``disabled`` (fresh file, recorder switched itself off) or ``silent`` (stale
    file). ``rejected``: number of files by reason; ``rejected_files`` names the first of them. ``duplicates``: number of series
    left out because a fresher file is about the same rank. ``owners``: uid of the owner of a run's files, by run id.
    """

    families: tuple[SpoolFamily, ...] = ()
    states: dict[RankKey, State] = field(default_factory=dict)
    ok_files: int = 0
    stale_files: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    owners: dict[str, int] = field(default_factory=dict)
    rejected_files: tuple[RejectedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class _CachedFile:
    """Parsed content of a file, valid while ``key`` (inode, size, mtime) is unchanged.

    ``age_s`` is the file's age when this version was first seen, at monotonic time ``seen_s``.
    """

    key: tuple[int, int, int]
    owner: int
    outcome: SpoolContent | str
    template: SpoolTemplate | None
    age_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class _SpoolCandidate:
    """Candidate for a rank's file."""

    name: str
    status: os.stat_result
    age_s: float


class _AcceptedFile(NamedTuple):
    """Content of a rank's file, the uid of its owner, and its age."""

    file: SpoolContent
    owner: int
    age_s: float


@dataclass(slots=True)
class _ReadingState:
    """State of one reading: parsed files by name, usage per user, and the owner of each run id."""

    cache: dict[str, _CachedFile] = field(default_factory=dict)
    files_of_user: Counter[int] = field(default_factory=Counter)
    series_of_user: Counter[int] = field(default_factory=Counter)
    bytes_of_user: Counter[int] = field(default_factory=Counter)
    owners: dict[str, int] = field(default_factory=dict)


class Spool:
    """Reader of the ``*.prom`` files in ``folder``. ``now`` returns unix seconds.

    Ages: a rank is silent if its file is older than ``stale_s``; only its identity and the time of its last step are kept. A file
    older than ``forget_s`` is ignored. A file's age comes from the wall clock when the file is first seen, and then advances with
    the monotonic clock, so that setting the wall clock changes no rank's state.

    Conflicts: a run belongs to the user whose file named it first. Of two files for the same rank the fresher counts, unless
    another user's file had this rank's series before.

    Limits: files are read freshest first, in turns among users, up to a limit per user. Files known from earlier readings are
    found even in a folder with too many names.

    A private folder is read only as long as no other user can put files into it.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        *,
        stale_s: float,
        forget_s: float,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._stale_s = stale_s
        self._forget_s = forget_s
        self._now = now
        self._monotonic = monotonic
        self._cache: dict[str, _CachedFile] = {}
        self._owners: dict[str, int] = {}
        self._owners_of_ranks: dict[RankKey, int] = {}
        self._read_s: float | None = None
        self._rejection_log = RejectionLog(monotonic)

    def read(self) -> SpoolSample:
        """Read all files; raises ``SpoolError`` if the folder cannot be read or trusted."""
        path = self._folder.path
        try:
            if self._folder.private and (reason := untrusted_reason(path.parent, path)) is not None:
                raise SpoolError(f"{reason}; it is not read: remove it, or name another folder with --spool")
            folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SpoolError(f"{path}: {error.strerror}") from error
        try:
            return self._read(folder_fd)
        finally:
            os.close(folder_fd)

    def _read(self, folder_fd: int) -> SpoolSample:
        accepted: list[_AcceptedFile] = []
        rejected = Rejections()
        pass_state = _ReadingState()
        now, now_s = self._now(), self._monotonic()
        files = [spool_file for spool_file in self._files(folder_fd, now, now_s, rejected) if spool_file.age_s <= self._forget_s]
        files.sort(key=lambda file: (file.age_s, file.name))
        for spool_file in _in_turns(files, rejected):
            try:
                accepted.append(self._accept(folder_fd, spool_file, now_s, pass_state))
            except FileNotFoundError:
                continue
            except RejectedError as error:
                rejected.add(RejectedFile(spool_file.name, spool_file.status.st_uid, error.reason))
            except Exception:  # noqa: BLE001  any user can write files: none may hide those of all others
                rejected.add(RejectedFile(spool_file.name, spool_file.status.st_uid, DEFECT))
        # Owners of runs without files are dropped, so that another user may use the run id.
        self._cache, self._owners, self._read_s = pass_state.cache, pass_state.owners, now_s
        self._rejection_log.report(rejected.files)
        return self._merge(accepted, rejected)

    def _accept(self, folder_fd: int, file: _SpoolCandidate, now_s: float, pass_state: _ReadingState) -> _AcceptedFile:
        if file.age_s < -_MAX_FUTURE_S:  # it would never become stale
            raise RejectedError("from_the_future")
        user = file.status.st_uid
        if (
            pass_state.files_of_user[user] >= MAX_FILES_OF_USER
            or pass_state.series_of_user[user] >= MAX_SERIES_OF_USER
            or pass_state.bytes_of_user[user] >= MAX_BYTES_OF_USER
        ):
            raise RejectedError("too_many_files")
        pass_state.files_of_user[user] += 1
        pass_state.bytes_of_user[user] += min(file.status.st_size, MAX_BYTES)
        cached = pass_state.cache[file.name] = self._load(folder_fd, file, now_s)
        outcome, owner = cached.outcome, cached.owner
        if isinstance(outcome, str):
            raise RejectedError(outcome)
        if pass_state.owners.setdefault(outcome.run_id, self._owners.get(outcome.run_id, owner)) != owner:
            raise RejectedError("foreign_owner")
        pass_state.series_of_user[owner] += sum(len(family.series) for family in outcome.families)
        return _AcceptedFile(outcome, owner, file.age_s)

    def _files(self, folder_fd: int, now: float, now_s: float, rejected: Counter[str]) -> Iterator[_SpoolCandidate]:
        """Yield the candidates in the folder."""
        try:
            names, complete = _listed(folder_fd)
        except OSError as error:
            raise SpoolError(f"{self._folder.path}: {error.strerror}") from error
        # Unlisted names count as one rejected file: their number and owners are unknown, but the loss must be visible.
        rejected["too_many_files"] += not complete
        candidates_of_user: Counter[int] = Counter()
        # Known files come first, so that no mass of other names can displace them.
        for name in dict.fromkeys((*self._cache, *names)):
            try:
                status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                rejected["unreadable"] += 1
                continue
            candidates_of_user[status.st_uid] += 1
            if candidates_of_user[status.st_uid] > MAX_CANDIDATES_OF_USER:
                rejected["too_many_files"] += 1
                continue
            yield _SpoolCandidate(name, status, self._age_s(name, status, now, now_s))

    def _age_s(self, name: str, status: os.stat_result, now: float, now_s: float) -> float:
        cached = self._cache.get(name)
        if cached is None or self._read_s is None:
            return now - status.st_mtime
        if cached.key == _key(status):
            return cached.age_s + now_s - cached.seen_s
        # The file was written since the last reading, even if the wall clock was set. Its writer may have set an older mtime.
        set_back_s = max(0.0, status.st_ctime - status.st_mtime)
        return set_back_s + min(max(0.0, now - status.st_ctime), now_s - self._read_s)

    def _load(self, folder_fd: int, file: _SpoolCandidate, now_s: float) -> _CachedFile:
        cached = self._cache.get(file.name)
        if cached is not None and cached.key == _key(file.status):
            return cached
        content, status = read_regular(file.name, folder_fd)
        outcome: SpoolContent | str | None = None
        template = cached.template if cached is not None else None
        try:
            if cached is not None and template is not None and isinstance(cached.outcome, SpoolContent):
                outcome = template.read(content, cached.outcome)
            if outcome is None:
                outcome = parse(content)
                template = SpoolTemplate.of(content, outcome)
        except RejectedError as error:
            outcome, template = error.reason, None
        return _CachedFile(_key(status), status.st_uid, outcome, template, file.age_s, now_s)

    def _merge(self, accepted: list[_AcceptedFile], rejected: Rejections) -> SpoolSample:
        series: dict[str, tuple[SpoolFamily, list[Series]]] = {}
        states: dict[RankKey, State] = {}
        owners: dict[RankKey, int] = {}
        stale_files = duplicates = 0
        # Another user's file must not take over the series of a rank.
        accepted.sort(
            key=lambda accepted_file: (
                self._owners_of_ranks.get(accepted_file.file.key, accepted_file.owner) != accepted_file.owner
            )
        )
        for file, owner, age_s in accepted:
            stale = age_s > self._stale_s
            stale_files += stale
            kept_families = [family for family in file.families if not stale or family.name in _KEPT_OF_SILENT]
            if file.key in states:
                duplicates += sum(len(family.series) for family in kept_families)
                continue
            owners[file.key] = owner
            states[file.key] = "silent" if stale else "disabled" if file.disabled else "running"
            for family in kept_families:  # of one type in all files; the help text of the first one counts
                series.setdefault(family.name, (family, []))[1].extend(family.series)
        self._owners_of_ranks = owners
        ok_files = len(accepted) - stale_files
        families = tuple(SpoolFamily(name, first.type, first.help, tuple(all_)) for name, (first, all_) in sorted(series.items()))
        return SpoolSample(
            families, states, ok_files, stale_files, dict(+rejected), duplicates, dict(self._owners), tuple(rejected.files)
        )


def _in_turns(files: list[_SpoolCandidate], rejected: Counter[str]) -> list[_SpoolCandidate]:
    """Select at most ``MAX_FILES`` files round-robin by user, in the given order, so that no user displaces another's."""
    turns: Counter[int] = Counter()
    selected = []
    for index, file in enumerate(files):
        turns[file.status.st_uid] += 1
        selected.append((turns[file.status.st_uid], index))
    selected.sort()
    rejected["too_many_files"] += len(selected[MAX_FILES:])
    return [files[index] for index in sorted(index for _, index in selected[:MAX_FILES])]


def _listed(folder_fd: int) -> tuple[list[str], bool]:
    """Return the names that may be ranks' files, and whether the list is complete."""
    names: list[str] = []
    with os.scandir(folder_fd) as entries:
        for entry in itertools.islice(entries, MAX_NAMES):
            if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                if len(names) == MAX_CANDIDATES:
                    return names, False
                names.append(entry.name)
        return names, next(entries, None) is None


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
