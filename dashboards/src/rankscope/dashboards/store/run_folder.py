"""List of the runs in a folder with the status of each, without an analysis."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.text import ranks_text
from rankscope.dashboards.data.background import BackgroundAnswers
from rankscope.dashboards.data.memory_cache import MemoryCache, adaptive_lifetime
from rankscope.dashboards.data.source import RunSummary, Status, UnknownRunError
from rankscope.dashboards.model.line import MAX_BADGE
from rankscope.dashboards.store.footprint import Footprint, footprint
from rankscope.dashboards.words.inert import MAX_TEXT, is_web_address, sanitize
from rankscope.runs.named import runs_in
from rankscope.runs.reader import RunReader, is_visible_run
from rankscope.runs.records import RunInfo
from rankscope.runs.silence import SILENT_SECONDS
from rankscope.runs.world_size import recorded_world_size

MOST_TRACKERS: Final = 4
"""Maximum number of links to experiment trackers."""

FEW_RUNS: Final = 20
"""Most runs that are looked at within a request."""

_QUICK_LOOK_S: Final = 0.02
"""Duration of a look at a run's files that allows one look per second, so that looks take at most 2 % of a worker."""


class RunFolder:
    """A run directory, or a folder whose sub-folders are run directories.

    A page makes many requests, so the state of a run's files is cached for ``look_again_s``, and proportionally longer if the
    look is slow, as for 1,024 ranks (50 to 200 ms). ``in_background``: many runs are looked at in a thread, and requests get the
    last list meanwhile. Raises ``InputError`` if ``path`` is not a readable folder.
    """

    def __init__(
        self,
        path: Path,
        cache: MemoryCache | None = None,
        *,
        clock_s: Callable[[], float],
        look_again_s: float,
        in_background: bool = False,
    ) -> None:
        try:
            if not path.exists():
                raise InputError(path, "no such file or folder; name the folder of your runs, or record one with `rankscope run`")
            if not path.is_dir():
                raise InputError(path, "not a folder: give a run directory, or a folder of run directories")
            runs_in(path)
        except OSError as error:
            raise InputError(path, error.strerror or str(error)) from error
        self.path = path.resolve()
        self._clock_s = clock_s
        self._look_again_s = look_again_s
        self._cache = cache = cache or MemoryCache()
        files = "the file system for the runs"
        self._lists = BackgroundAnswers(cache, "list of runs", files, lifetime_s=adaptive_lifetime) if in_background else None
        self.has_many = False
        """True if there are too many runs to look at all of them within a request."""
        self._where: dict[str, Path] = {}
        """Folder in which a run was last seen, so that a request for one run does not read all runs."""

    def runs(self) -> list[RunSummary]:
        """Return all runs: the live ones, then the others, newest first.

        Of two folders with the same run id the one that was written last is the run, and the other one is reported as a problem.
        """
        lists = self._lists
        if lists is None or (not self.has_many and len(self._folders()) <= FEW_RUNS):
            return self._listed()
        self.has_many = True
        listed = lists.get("", "", self._listed_or_why)
        if isinstance(listed, RankscopeError):
            raise listed
        return list(listed)

    def _listed_or_why(self) -> list[RunSummary] | RankscopeError:
        try:
            return self._listed()
        except RankscopeError as error:
            return error

    def _listed(self) -> list[RunSummary]:
        runs: dict[str, RunSummary] = {}
        problems: list[tuple[RunSummary, str]] = []
        by_path = {summary.path: summary for summary in map(self._summary, self._folders())}  # a link to a run is that run
        for summary in sorted(by_path.values(), key=lambda run: -(run.last_write_unix_ns or 0)):
            if summary.problem is not None:
                problems.append((summary, summary.problem))
            elif (first := runs.setdefault(summary.run_id, summary)) is not summary:
                problems.append((summary, f"{summary.path}: has the same run id ({summary.run_id}) as {first.path}"))
        self._where.update({run.run_id: Path(run.path) for run in runs.values()})
        for summary, problem in problems:
            run = _unreadable(Path(summary.path), summary.revision, problem)
            # The folder's name may be the id of another run.
            run_id = run.path if run.run_id in runs else run.run_id
            runs[run_id] = replace(run, run_id=run_id)
        return sorted(runs.values(), key=lambda run: (run.status == "live", run.start_unix_ns or 0, run.run_id), reverse=True)

    def summary(self, run_id: str) -> RunSummary:
        """Return one run as it is now."""
        folder = self._where.get(run_id)
        if folder is not None and is_visible_run(folder):
            summary = self._summary(folder)
            if summary.run_id == run_id and summary.problem is None:
                return summary
        for summary in self.runs():
            if summary.run_id == run_id:
                return summary
        raise UnknownRunError(f"there is no run {run_id!r} in {self.path}")

    def _folders(self) -> list[Path]:
        try:
            return runs_in(self.path)
        except OSError as error:
            raise InputError(self.path, error.strerror or str(error)) from error

    def _summary(self, folder: Path) -> RunSummary:
        if folder.is_symlink():
            real = Path(os.path.realpath(folder))
            if not real.is_relative_to(self.path):
                problem = f"{folder}: a symbolic link that leads out of {self.path}. Nothing of it is shown"
                return _unreadable(folder, "outside", problem)
            folder = real
        files = self._footprint(folder)
        # The summary of 1,024 ranks takes 80 ms, and in a live run only the streams change.
        read = self._cache.get("summary", str(folder), files.standing, lambda: _summed_up(folder, files))
        if read.problem is None:
            read = replace(read, revision=files.revision, last_write_unix_ns=files.newest_unix_ns, size_bytes=files.size_bytes)
        if read.status == "live" and self._clock_s() - files.newest_unix_ns / 1e9 > SILENT_SECONDS:
            # Decided on every call, since silence does not change the files.
            return replace(read, status="silent")
        return read

    def _footprint(self, folder: Path) -> Footprint:
        def lifetime_s(cost_s: float) -> float:
            return self._look_again_s * max(1.0, cost_s / _QUICK_LOOK_S)

        return self._cache.get("footprint", str(folder), "", lambda: footprint(folder), lifetime_s=lifetime_s)


def _summed_up(folder: Path, files: Footprint) -> RunSummary:
    try:
        reader = RunReader(folder, links=False)
        attempts = reader.attempts()
        last = attempts[-1] if attempts else 0
        ranks = reader.ranks(last) if attempts else []
        infos = [info for rank in ranks if (info := reader.rank(last, rank)) is not None]
        attempt = reader.attempt(last) if attempts else None
    except RankscopeError as error:
        return _unreadable(folder, files.revision, str(error))
    losses = ", ".join(
        f"{_named(ended, len(infos))} {word}"
        for reason, word in (("crash", "crashed"), ("killed", "killed"))
        if (ended := [info.rank for info in infos if info.end_reason == reason])
    )
    unrecorded = [info.rank for info in infos if info.end_reason == "disabled"]
    status: Status = "live"
    if not ranks:
        status = "starting"
    elif infos and all(info.end_reason is not None for info in infos):
        status = "failed" if losses else "finished"
    return RunSummary(
        run_id=reader.info.run_id,
        name=sanitize(reader.info.name),
        path=str(folder),
        revision=files.revision,
        status=status,
        start_unix_ns=reader.info.start_unix_ns,
        last_write_unix_ns=files.newest_unix_ns,
        size_bytes=files.size_bytes,
        world_size=recorded_world_size(attempt, infos),
        ranks=len(ranks),
        hosts=len({info.host for info in infos}),
        attempts=len(attempts),
        simulated=reader.info.simulated,
        losses=losses or None,
        trackers=_trackers(reader.info),
        unrecorded=_named(unrecorded, len(infos)) if unrecorded else None,
    )


def _trackers(info: RunInfo) -> tuple[tuple[str, str], ...]:
    """Return the trackers whose addresses are web addresses: anything may be in the file."""
    links = [(sanitize(name, MAX_BADGE), url) for name, url in info.trackers.items() if is_web_address(url)]
    return tuple(links[:MOST_TRACKERS])


def _named(ranks: list[int], of: int) -> str:
    return f"all {of:,} ranks" if len(ranks) == of > 1 else ranks_text(ranks)


def _unreadable(folder: Path, revision: str, problem: str) -> RunSummary:
    return RunSummary(
        run_id=folder.name,
        name=sanitize(folder.name),
        path=str(folder),
        revision=revision,
        status="unreadable",
        problem=sanitize(problem, MAX_TEXT),
    )
