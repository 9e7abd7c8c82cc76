"""Data of the runs in a folder, computed on request and cached while the runs' files do not change."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rankscope.analysis.whatif.step_scenarios import Combinations
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.alerts.data import FolderAlerts
from rankscope.dashboards.compare.data import ComparedRuns, read_comparison
from rankscope.dashboards.data.brief import Brief, StoredBrief, stored_brief
from rankscope.dashboards.data.memory_cache import MAX_BYTES, MemoryCache
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import BEING_WRITTEN, NotReadyError, RunSummary, Stale
from rankscope.dashboards.store.backlog import Backlog
from rankscope.dashboards.store.builders import InlineBuilder
from rankscope.dashboards.store.cache import Store, is_unfinished, key_of
from rankscope.dashboards.store.derive import DerivedData
from rankscope.dashboards.store.footprint import VERDICT, footprint
from rankscope.dashboards.store.run_folder import RunFolder
from rankscope.dashboards.timeline.data import WindowData, read_window
from rankscope.dashboards.timeline.windows import CAPTURED, EXPORT, Window, Windows, kernels_of, read_windows, steps_of
from rankscope.dashboards.whatif.data import WhatIfAnswer, cached_combinations, read_answer
from rankscope.runs.records import KernelRecord, StepRecord

if TYPE_CHECKING:
    from rankscope.dashboards.alerts.prometheus import (
        Prometheus,  # needs a package that is installed only for queries to a Prometheus
    )

WHATIF_EVERY_S: Final = 300.0
"""Refresh interval of the what-if and the comparisons of a live run; reading all of a large run takes minutes."""


T = TypeVar("T")


class DiskRuns:
    """``RunSource`` over ``path``: a run directory, or a folder whose sub-folders are run directories.

    ``prometheus`` adds alerts to those in the runs' files.
    ``builder`` runs the slow tasks; without one, the caller waits for them and their results are deleted with this object.
    ``look_again_s`` and the errors raised: see ``RunFolder``.
    """

    def __init__(
        self,
        path: Path,
        builder: InlineBuilder | None = None,
        *,
        prometheus: Prometheus | None = None,
        clock_s: Callable[[], float] = time.time,
        look_again_s: float = 0.0,
        memory_bytes: int = MAX_BYTES,
    ) -> None:
        if builder is None:
            folder = tempfile.mkdtemp(prefix="rankscope-dashboard-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            builder = InlineBuilder(Store(Path(folder)))
        self._builder = builder
        self.cancel = builder.cancel
        self._cache = MemoryCache(memory_bytes)
        background = not builder.waits
        self._folder = RunFolder(path, self._cache, clock_s=clock_s, look_again_s=look_again_s, in_background=background)
        self.runs, self.summary = self._folder.runs, self._folder.summary
        alerts = FolderAlerts(self._folder, prometheus, self._cache, clock_s=clock_s, in_background=background)
        self.alerts, self.all_alerts = alerts.of_run, alerts.of_all
        self._clock_s = clock_s
        self._backlog = Backlog(self.brief)
        self.analyse = self._backlog.add
        self._damaged: set[Path] = set()
        """Cached folders that could not be read."""

    def version(self, run_id: str) -> str:
        """Return the version of the derived data, which may be older than the run's files."""
        derived = self._derived(run_id)
        return self._sound(derived.folder, lambda: derived.version)

    def stale(self, run_id: str) -> Stale | None:
        """Return the reason and age of outdated data: a live run whose follower fails, or one that has just ended."""
        derived = self._derived(run_id, listed=True)
        return self._sound(derived.folder, lambda: derived.stale)

    def part(self, run_id: str, name: str) -> Any:
        """Return a part of the derived data of a run, one of ``PARTS``, cached until it changes."""
        return self._part(self._derived(run_id), name)

    def brief(self, run_id: str) -> Brief:
        """Return the summary of a run for lists."""
        brief: Brief = self._part(self._derived(run_id, listed=True), "brief")
        return brief

    @property
    def backlog(self) -> Progress:
        """Number of analyses by ``analyse`` that have ended, of all that were requested."""
        return self._backlog.progress

    def known_brief(self, run: RunSummary) -> Brief | None:
        """Return the summary of a run if it is cached."""
        derived = None if run.problem is not None else self._builder.cached(run)
        return None if derived is None else self._part(derived, "brief")

    def stored_brief(self, run: RunSummary) -> StoredBrief | None:
        """Return the summary by the verdict in the run directory, read once per state of the files."""
        if run.problem is not None or run.status not in ("finished", "failed"):
            return None
        # The run's revision leaves the verdict out, which is stored seconds after the end of the run.
        revision = f"{run.revision} {_modified_ns(f'{run.path}/{VERDICT}')}"
        return self._cache.get("stored brief", run.path, revision, lambda: stored_brief(Path(run.path), run.last_write_unix_ns))

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> ComparedRuns:
        """Return runs compared with the first; with a live one, compared anew every ``WHATIF_EVERY_S`` while requested."""
        arguments = ["" if at is None else str(at)]
        return self._repeated(run_ids, "compare", arguments, WHATIF_EVERY_S, read_comparison)

    def whatif(self, run_id: str) -> WhatIfAnswer:
        """Return the what-if answer; for a live run it is recomputed every ``WHATIF_EVERY_S`` while requested."""
        return self._repeated([run_id], "whatif", [], WHATIF_EVERY_S, read_answer)

    def combinations(self, run_id: str) -> Combinations | None:
        """Return the combinations of parts in the what-if, recomputed as ``whatif`` is; ``None`` if the run allows none."""
        return self._repeated([run_id], "combinations", [], WHATIF_EVERY_S, cached_combinations)

    def _repeated(self, run_ids: Sequence[str], task: str, arguments: list[str], every_s: float, read: Callable[[Path], T]) -> T:
        """Return a task's result. With a live run it is recomputed every ``every_s``; until then the previous one is returned."""
        runs = [self._readable(run_id) for run_id in run_ids]
        interval = f"{self._clock_s() // every_s:.0f}"
        states = [interval if run.status in BEING_WRITTEN else run.revision for run in runs]
        name = key_of(*arguments, *run_ids)
        key = key_of(task, name, *(run.path for run in runs), *states)
        try:
            folder = self._builder.result(key, task, [*arguments, *(run.path for run in runs)], runs)
        except NotReadyError:
            before: T | None = self._cache.last(task, name) if interval in states else None
            if before is None:
                raise
            return before
        return self._sound(folder, lambda: self._cache.get(task, name, key, lambda: read(folder)))

    def windows(self, run: RunSummary) -> Windows:
        """Return the captured windows of a run as of ``run``."""
        key = key_of("windows", run.path, self._captured(run))
        folder = self._builder.result(key, "windows", [run.path], [run])
        return self._sound(folder, lambda: self._cache.get("windows", key, key, lambda: read_windows(folder)))

    def window(self, run: RunSummary, window: Window) -> WindowData:
        """Return the data of one captured window."""
        key = self._key_of_window("window", run, window)
        folder = self._builder.result(key, "window", _named_window(run, window), [run])
        return self._sound(folder, lambda: self._cache.get("window", key, key, lambda: read_window(folder)))

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        """Return the step records of a rank in a window."""
        key = key_of(self._key_of_window("steps", run, window), str(rank))
        return self._cache.get("records", key, key, lambda: steps_of(Path(run.path), rank, window))

    def window_kernels(self, run: RunSummary, window: Window, rank: int) -> list[KernelRecord]:
        """Return the costliest kernels of a rank in a window."""
        key = key_of(self._key_of_window("kernels", run, window), str(rank))
        return self._cache.get("records", key, key, lambda: kernels_of(Path(run.path), rank, window))

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        """Return the file of a window for Perfetto."""
        key = self._key_of_window("perfetto", run, window)
        return self._builder.result(key, "perfetto", _named_window(run, window), [run]) / EXPORT

    def _key_of_window(self, task: str, run: RunSummary, window: Window) -> str:
        return key_of(task, run.path, self._captured(run), str(window.first), str(window.past))

    def _captured(self, run: RunSummary) -> str:
        """Return a revision that changes with each captured window, but not with each step.

        Raises ``RankscopeError`` for an unreadable run, such as a link that leads out of the folder.
        """
        if run.problem is not None:
            raise RankscopeError(run.problem)
        return self._cache.get(
            "captured", run.path, run.revision, lambda: footprint(Path(run.path), CAPTURED, traces=True).revision
        )

    def _part(self, derived: DerivedData, name: str) -> Any:
        folder = derived.folder
        return self._sound(folder, lambda: self._cache.get(name, str(folder), derived.version, lambda: derived.part(name)))

    def _sound(self, folder: Path, read: Callable[[], T]) -> T:
        """Read a cached folder. An unreadable one, for example after a machine crash, is deleted and recomputed once."""
        try:
            return read()
        except InputError as error:
            if is_unfinished(folder) and not folder.exists():
                raise NotReadyError(Progress("reading the run again")) from error  # its follower has just ended
            if is_unfinished(folder) or folder in self._damaged:
                raise
            self._damaged.add(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise NotReadyError(Progress("rebuilding a damaged cache entry")) from error

    def _derived(self, run_id: str, *, listed: bool = False) -> DerivedData:
        return self._builder.derived(self._readable(run_id), listed=listed)

    def _readable(self, run_id: str) -> RunSummary:
        summary = self.summary(run_id)
        if summary.problem is not None:
            raise RankscopeError(summary.problem)
        return summary


def _modified_ns(path: str) -> int | None:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return None


def _named_window(run: RunSummary, window: Window) -> list[object]:
    return [run.path, window.attempt, window.first, window.past]
