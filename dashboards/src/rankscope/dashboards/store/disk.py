"""Data of the runs in a folder, computed on request and cached while the runs' files do not change."""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from rankscope.alerts.replay.result import Replay
from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.alerts.data import AlertsFound, FolderAlerts
from rankscope.dashboards.alerts.replay import read_replay
from rankscope.dashboards.compare.data import Compared, read_comparison
from rankscope.dashboards.data.brief import Brief, StoredBrief, stored_brief
from rankscope.dashboards.data.events import Events
from rankscope.dashboards.data.hardware import Hardware
from rankscope.dashboards.data.memo import Memo
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, RunSummary, Stale, StepMatrices
from rankscope.dashboards.data.topology import Topology
from rankscope.dashboards.data.trend import Trend
from rankscope.dashboards.store.cache import Store, is_followed, key_of
from rankscope.dashboards.store.derive import Derived
from rankscope.dashboards.store.footprint import footprint
from rankscope.dashboards.store.making import MadeHere, Making
from rankscope.dashboards.store.mirror import not_renewed
from rankscope.dashboards.store.run_folder import RunFolder
from rankscope.dashboards.stragglers.data import BlameBook
from rankscope.dashboards.timeline.data import WindowData, read_window
from rankscope.dashboards.timeline.windows import CAPTURED, EXPORT, Window, Windows, kernels_of, read_windows, steps_of
from rankscope.dashboards.whatif.data import Scenarios, read_scenarios
from rankscope.runs.records import KernelRecord, StepRecord

if TYPE_CHECKING:
    from rankscope.alerts.prometheus import Prometheus  # needs a package that is installed only for queries to a Prometheus

WHATIF_EVERY_S: Final = 300.0
"""Refresh interval of the what-if of a live run; reading all of a large run takes minutes."""

REPLAY_EVERY_S: Final = 3600.0
"""Refresh interval of the alert replay of a live run."""

_KEPT_LINES: Final = 1 << 15
_KEPT_COMPARISONS: Final = 32
_KEPT_WANTED: Final = 256
_KEPT_WINDOWS: Final = 16
"""A window of 1,024 ranks takes about 6 MB."""
_KEPT_ANALYSES: Final = 64
_KEPT_TABLES: Final = 16

Held = TypeVar("Held")


class DiskRuns:
    """``RunSource`` over ``path``: a run directory, or a folder whose sub-folders are run directories.

    ``prometheus`` adds alerts to those in the runs' files, and supplies GPU readings of runs without samples.
    ``making`` runs the slow tasks; without one, the caller waits for them and their results are deleted with this object.
    ``look_again_s``, ``copy_of`` and the errors raised: see ``RunFolder``.
    """

    def __init__(
        self,
        path: Path,
        making: Making | None = None,
        *,
        prometheus: Prometheus | None = None,
        clock_s: Callable[[], float] = time.time,
        look_again_s: float = 0.0,
        copy_of: str | None = None,
    ) -> None:
        self._folder = RunFolder(path, clock_s=clock_s, look_again_s=look_again_s, copy_of=copy_of)
        self._alerts = FolderAlerts(self._folder, prometheus, clock_s=clock_s)
        self._clock_s = clock_s
        self._prometheus = prometheus
        if making is None:
            folder = tempfile.mkdtemp(prefix="rankscope-dashboard-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            making = MadeHere(Store(Path(folder)))
        self._making = making
        self._comparing: dict[tuple[object, ...], str] = {}
        """Comparisons in progress, to their keys, which name the revisions of the compared runs."""
        self._briefs: Memo[Brief] = Memo(_KEPT_LINES)
        self._stored: Memo[StoredBrief | None] = Memo(_KEPT_LINES)
        self._comparisons: Memo[Compared] = Memo(_KEPT_COMPARISONS)
        self._captures: Memo[str] = Memo(_KEPT_LINES)
        self._lists: Memo[Windows] = Memo(_KEPT_ANALYSES)
        self._windows: Memo[WindowData] = Memo(_KEPT_WINDOWS)
        self._host_steps: Memo[list[StepRecord]] = Memo(_KEPT_LINES)
        self._kernels: Memo[list[KernelRecord]] = Memo(_KEPT_LINES)
        self._analyses: Memo[Analysis] = Memo(_KEPT_ANALYSES)
        self._blames: Memo[BlameBook] = Memo(_KEPT_TABLES)
        self._replays: Memo[Replay] = Memo(_KEPT_TABLES)
        self._scenarios: Memo[Scenarios] = Memo(_KEPT_TABLES)
        self._tables: Memo[StepMatrices] = Memo(_KEPT_TABLES)
        self._trends: Memo[Trend] = Memo(_KEPT_TABLES)
        self._topologies: Memo[Topology] = Memo(_KEPT_TABLES)
        self._hardware: Memo[Hardware] = Memo(_KEPT_TABLES)
        self._events: Memo[Events] = Memo(_KEPT_TABLES)
        self._scraped: Memo[Hardware] = Memo(_KEPT_TABLES)
        self._damaged: set[Path] = set()
        """Cached folders that could not be read."""

    def runs(self) -> list[RunSummary]:
        """Return all runs, the live ones first."""
        return self._folder.runs()

    def summary(self, run_id: str) -> RunSummary:
        """Return one run as it is now."""
        return self._folder.summary(run_id)

    def version(self, run_id: str) -> str:
        """Return the version of the derived data, which may be older than the run's files."""
        return self._derived(run_id).version

    def stale(self, run_id: str) -> Stale | None:
        """Return the reason and age of outdated data: a live run whose follower fails, or a copy that was not renewed."""
        late = None if self._folder.copy_of is None else not_renewed(self._folder.path)
        return late or self._derived(run_id, wait=False).stale

    def analysis(self, run_id: str) -> Analysis:
        """Return the verdict and its evidence, computed once per revision of the files."""
        return self._made(self._analyses, run_id, Derived.analysis)

    def brief(self, run_id: str) -> Brief:
        """Return the summary of a run for lists, without waiting."""
        return self._brief(self._derived(run_id, wait=False))

    def known_brief(self, run: RunSummary) -> Brief | None:
        """Return the summary of a run if it is cached."""
        derived = None if run.problem is not None else self._making.known(Path(run.path), run.run_id, run.revision)
        return None if derived is None else self._brief(derived)

    def stored_brief(self, run: RunSummary) -> StoredBrief | None:
        """Return the summary by the verdict in the run directory, read once per revision of the files."""
        if run.problem is not None or run.status not in ("finished", "failed"):
            return None
        read = partial(stored_brief, Path(run.path), run.last_write_unix_ns)
        return self._stored.get(run.path, run.revision, read)

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> Compared:
        """Return runs compared with the first, at the revisions they had when the comparison was first requested."""
        now = [self._readable(run_id) for run_id in run_ids]
        # A live run changes while it is compared: repeated requests keep the first key until the comparison is done.
        asked = (at, *run_ids)
        key = self._comparing.setdefault(asked, key_of("compare", str(at), *(f"{run.path}\0{run.revision}" for run in now)))
        while len(self._comparing) > _KEPT_WANTED:  # any address may ask, and nobody has to wait for the answer
            self._comparing.pop(next(iter(self._comparing)), None)
        try:
            folder = self._making.made(key, "compare", ["" if at is None else at, *(run.path for run in now)])
        except NotReadyError:
            raise
        except RankscopeError:
            self._comparing.pop(asked, None)
            raise
        self._comparing.pop(asked, None)
        return self._sound(folder, lambda: self._comparisons.get(key, key, lambda: read_comparison(folder)))

    def blame(self, run_id: str) -> BlameBook:
        """Return imposed wait by origin, victim and cause."""
        return self._made(self._blames, run_id, Derived.blame)

    def scenarios(self, run_id: str) -> Scenarios:
        """Return the what-if scenarios; for a live run they are recomputed every ``WHATIF_EVERY_S`` while requested."""
        return self._now_and_then(run_id, "whatif", WHATIF_EVERY_S, self._scenarios, read_scenarios)

    def replay(self, run_id: str) -> Replay:
        """Return all alerts over a run; for a live run they are recomputed every ``REPLAY_EVERY_S`` while requested."""
        return self._now_and_then(run_id, "replay", REPLAY_EVERY_S, self._replays, read_replay)

    def _now_and_then(self, run_id: str, task: str, every_s: float, memo: Memo[Held], read: Callable[[Path], Held]) -> Held:
        """Return a task's result. For a live run it is recomputed every ``every_s``; until then the previous one is returned."""
        summary = self._readable(run_id)
        goes_on = summary.status in ("starting", "live")
        state = f"{self._clock_s() // every_s:.0f}" if goes_on else summary.revision
        key = key_of(task, run_id, summary.path, state)
        try:
            folder = self._making.made(key, task, [summary.path])
        except NotReadyError:
            before = memo.last(run_id) if goes_on else None
            if before is None:
                raise
            return before
        return self._sound(folder, lambda: memo.get(run_id, key, lambda: read(folder)))

    def windows(self, run: RunSummary) -> Windows:
        """Return the captured windows of a run as of ``run``."""
        key = key_of("windows", run.path, self._captured(run))
        return self._lists.get(key, key, lambda: self._read(self._making.made(key, "windows", [run.path]), read_windows))

    def window(self, run: RunSummary, window: Window) -> WindowData:
        """Return the data of one captured window."""
        key = self._key_of_window("window", run, window)
        made = partial(self._making.made, key, "window", _named_window(run, window))
        return self._windows.get(key, key, lambda: self._read(made(), read_window))

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        """Return the step records of a rank in a window."""
        key = key_of(self._key_of_window("steps", run, window), str(rank))
        return self._host_steps.get(key, key, lambda: steps_of(Path(run.path), rank, window))

    def window_kernels(self, run: RunSummary, window: Window, rank: int) -> list[KernelRecord]:
        """Return the costliest kernels of a rank in a window."""
        key = key_of(self._key_of_window("kernels", run, window), str(rank))
        return self._kernels.get(key, key, lambda: kernels_of(Path(run.path), rank, window))

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        """Return the file of a window for Perfetto."""
        key = self._key_of_window("perfetto", run, window)
        return self._making.made(key, "perfetto", _named_window(run, window), wait=False) / EXPORT

    def _key_of_window(self, task: str, run: RunSummary, window: Window) -> str:
        return key_of(task, run.path, self._captured(run), str(window.first), str(window.past))

    def _captured(self, run: RunSummary) -> str:
        """Return a revision that changes with each captured window, but not with each step.

        Raises ``RankscopeError`` for an unreadable run, such as one whose path leads out of the folder.
        """
        if run.problem is not None:
            raise RankscopeError(run.problem)
        return self._captures.get(run.path, run.revision, lambda: footprint(Path(run.path), CAPTURED, traces=True).revision)

    def steps(self, run_id: str) -> StepMatrices:
        """Return per-step values, read once per revision of the files."""
        return self._made(self._tables, run_id, Derived.steps)

    def trend(self, run_id: str) -> Trend:
        """Return the trend: all ranks together, step by step."""
        return self._made(self._trends, run_id, Derived.trend)

    def topology(self, run_id: str) -> Topology:
        """Return the topology."""
        return self._made(self._topologies, run_id, Derived.topology)

    def hardware(self, run_id: str) -> Hardware:
        """Return GPUs and their samples: the run's own, or else those of a Prometheus, at most a minute old."""
        own = self._made(self._hardware, run_id, Derived.hardware)
        prometheus = self._prometheus
        if own.gpus or prometheus is None:
            return own
        from rankscope.dashboards.store.prometheus_hardware import scraped_hardware

        run = self.summary(run_id)
        now_ns = int(self._clock_s() * 1e9)
        last_ns = min(run.last_write_unix_ns or now_ns, now_ns)
        span = (min(run.start_unix_ns or last_ns, last_ns), last_ns)
        return self._scraped.get(
            run_id,
            f"{self.version(run_id)} {now_ns // (60 * 10**9)}",
            lambda: scraped_hardware(prometheus, self.analysis(run_id), span, own),
        )

    def events(self, run_id: str) -> Events:
        """Return the GPU events."""
        return self._made(self._events, run_id, Derived.events)

    def _brief(self, derived: Derived) -> Brief:
        return self._sound(derived.folder, lambda: self._briefs.get(str(derived.folder), derived.version, derived.brief))

    def _made(self, memo: Memo[Held], run_id: str, read: Callable[[Derived], Held]) -> Held:
        """Return a cached part of the derived data."""
        derived = self._derived(run_id)
        return self._sound(derived.folder, lambda: memo.get(str(derived.folder), derived.version, lambda: read(derived)))

    def _read(self, folder: Path, read: Callable[[Path], Held]) -> Held:
        return self._sound(folder, lambda: read(folder))

    def _sound(self, folder: Path, read: Callable[[], Held]) -> Held:
        """Read a cached folder. An unreadable one, for example after a machine crash, is deleted and recomputed once."""
        try:
            return read()
        except InputError as error:
            if is_followed(folder) or folder in self._damaged:
                raise
            self._damaged.add(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise NotReadyError(Progress("making anew what could not be read any more")) from error

    def _derived(self, run_id: str, *, wait: bool = True) -> Derived:
        summary = self._readable(run_id)
        get = self._making.live if summary.status in ("starting", "live") else self._making.finished
        return get(Path(summary.path), run_id, summary.revision, wait=wait)

    def _readable(self, run_id: str) -> RunSummary:
        summary = self.summary(run_id)
        if summary.problem is not None:
            raise RankscopeError(summary.problem)
        return summary

    def alerts(self, run_id: str) -> AlertsFound:
        """Return alerts about a run, at most some seconds old."""
        return self._alerts.of_run(run_id)

    def all_alerts(self) -> AlertsFound:
        """Return alerts of all runs, at most some seconds old."""
        return self._alerts.of_all()


def _named_window(run: RunSummary, window: Window) -> list[object]:
    return [run.path, window.attempt, window.first, window.past]
