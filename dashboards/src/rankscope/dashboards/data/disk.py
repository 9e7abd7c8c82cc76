"""What there is to show of the runs in a folder: made when it is asked for, and kept while it is true."""

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
from rankscope.analysis.result import Analysis
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.alert_record import AlertsFound
from rankscope.dashboards.data.blame import BlameBook
from rankscope.dashboards.data.brief import Brief
from rankscope.dashboards.data.comparing import Compared, read_comparison
from rankscope.dashboards.data.derive import Derived
from rankscope.dashboards.data.events import Events
from rankscope.dashboards.data.folder_alerts import FolderAlerts
from rankscope.dashboards.data.footprint import footprint
from rankscope.dashboards.data.hardware import Hardware
from rankscope.dashboards.data.making import MadeHere, Making
from rankscope.dashboards.data.memo import Memo
from rankscope.dashboards.data.mirror import not_renewed
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.replaying import read_replay
from rankscope.dashboards.data.run_folder import RunFolder
from rankscope.dashboards.data.scenarios import Scenarios, read_scenarios
from rankscope.dashboards.data.source import NotReadyError, RunSummary, Stale, StepMatrices
from rankscope.dashboards.data.store import Store, is_followed, key_of
from rankscope.dashboards.data.topology import Topology
from rankscope.dashboards.data.trend import Trend
from rankscope.dashboards.data.window_data import WindowData, read_window
from rankscope.dashboards.data.window_export import EXPORT
from rankscope.dashboards.data.windows import CAPTURED, Window, Windows, read_windows, steps_of
from rankscope.runs.records import StepRecord

if TYPE_CHECKING:
    from rankscope.alerts.prometheus import Prometheus  # needs a package that only who asks a Prometheus needs

WHATIF_EVERY_S: Final = 300.0
"""Of a run that goes on: reading all of a large one takes minutes."""

REPLAY_EVERY_S: Final = 3600.0
"""Of a run that goes on."""

_KEPT_LINES: Final = 1 << 15
_KEPT_COMPARISONS: Final = 32
_KEPT_WINDOWS: Final = 16
"""Of 1,024 ranks one takes some 6 MB."""
_KEPT_ANALYSES: Final = 64
_KEPT_TABLES: Final = 16

Held = TypeVar("Held")


class DiskRuns:
    """``RunSource`` over ``path``: a run directory, or a folder whose sub-folders are run directories.

    ``prometheus`` tells alerts besides the runs' own files, and of the GPUs of runs without samples.
    ``making`` has what takes long; without one it is done while the caller waits, and forgotten with this object.
    ``look_again_s``, ``copy_of``, and what is raised: see ``RunFolder``.
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
        """Comparisons that are being made, and of which states of their runs."""
        self._briefs: Memo[Brief] = Memo(_KEPT_LINES)
        self._comparisons: Memo[Compared] = Memo(_KEPT_COMPARISONS)
        self._captures: Memo[str] = Memo(_KEPT_LINES)
        self._lists: Memo[Windows] = Memo(_KEPT_ANALYSES)
        self._windows: Memo[WindowData] = Memo(_KEPT_WINDOWS)
        self._host_steps: Memo[list[StepRecord]] = Memo(_KEPT_LINES)
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
        """What was cached and could not be read."""

    def runs(self) -> list[RunSummary]:
        """All runs, the live ones first."""
        return self._folder.runs()

    def summary(self, run_id: str) -> RunSummary:
        """One run as it is now."""
        return self._folder.summary(run_id)

    def version(self, run_id: str) -> str:
        """Of what has been worked out, which may be older than the files."""
        return self._derived(run_id).version

    def stale(self, run_id: str) -> Stale | None:
        """Of a run that goes on, while what follows it fails."""
        late = None if self._folder.copy_of is None else not_renewed(self._folder.path)
        return late or self._derived(run_id, wait=False).stale

    def analysis(self, run_id: str) -> Analysis:
        """The verdict and its evidence, computed once per state of the files."""
        return self._made(self._analyses, run_id, Derived.analysis)

    def brief(self, run_id: str) -> Brief:
        """The line about a run, for lists."""
        return self._brief(self._derived(run_id, wait=False))

    def known_brief(self, run: RunSummary) -> Brief | None:
        """The same if it is there."""
        derived = None if run.problem is not None else self._making.known(run.run_id, run.revision)
        return None if derived is None else self._brief(derived)

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> Compared:
        """Runs compared with the first, in the state in which this was asked for when it was not there yet."""
        now = [self._readable(run_id) for run_id in run_ids]
        # What goes on changes while it is compared: until that is done, the same is asked for.
        asked = (at, *run_ids)
        key = self._comparing.setdefault(asked, key_of("compare", str(at), *(f"{run.run_id}\0{run.revision}" for run in now)))
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
        """Who delayed whom and why."""
        return self._made(self._blames, run_id, Derived.blame)

    def scenarios(self, run_id: str) -> Scenarios:
        """What-if; of a run that goes on it is made anew every ``WHATIF_EVERY_S`` while somebody looks."""
        return self._now_and_then(run_id, "whatif", WHATIF_EVERY_S, self._scenarios, read_scenarios)

    def replay(self, run_id: str) -> Replay:
        """All alerts over a run; of one that goes on it is made anew every ``REPLAY_EVERY_S`` while somebody looks."""
        return self._now_and_then(run_id, "replay", REPLAY_EVERY_S, self._replays, read_replay)

    def _now_and_then(self, run_id: str, task: str, every_s: float, memo: Memo[Held], read: Callable[[Path], Held]) -> Held:
        """What a task makes of a run; of one that goes on every ``every_s``, until then what was made before."""
        summary = self._readable(run_id)
        goes_on = summary.status in ("starting", "live")
        state = f"{summary.path} {self._clock_s() // every_s:.0f}" if goes_on else summary.revision
        key = key_of(task, run_id, state)
        try:
            folder = self._making.made(key, task, [summary.path])
        except NotReadyError:
            before = memo.last(run_id) if goes_on else None
            if before is None:
                raise
            return before
        return self._sound(folder, lambda: memo.get(run_id, key, lambda: read(folder)))

    def windows(self, run: RunSummary) -> Windows:
        """Captured windows of a run as it was when it was summed up."""
        key = key_of("windows", run.run_id, self._captured(run))
        return self._lists.get(key, key, lambda: self._read(self._making.made(key, "windows", [run.path]), read_windows))

    def window(self, run: RunSummary, window: Window) -> WindowData:
        """One of them."""
        key = self._key_of_window("window", run, window)
        made = partial(self._making.made, key, "window", _named_window(run, window))
        return self._windows.get(key, key, lambda: self._read(made(), read_window))

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        """Step records of a rank in a window."""
        key = key_of(self._key_of_window("steps", run, window), str(rank))
        return self._host_steps.get(key, key, lambda: steps_of(Path(run.path), rank, window))

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        """A window as a file for Perfetto."""
        key = self._key_of_window("perfetto", run, window)
        return self._making.made(key, "perfetto", _named_window(run, window), wait=False) / EXPORT

    def _key_of_window(self, task: str, run: RunSummary, window: Window) -> str:
        return key_of(task, run.run_id, self._captured(run), str(window.first), str(window.past))

    def _captured(self, run: RunSummary) -> str:
        """Changes when a window has been captured: while steps go on, what is known of windows stays.

        Nothing about windows is looked for of a run that cannot be read, such as one that leads out of the folder.
        """
        if run.problem is not None:
            raise RankscopeError(run.problem)
        return self._captures.get(run.path, run.revision, lambda: footprint(Path(run.path), CAPTURED, traces=True).revision)

    def steps(self, run_id: str) -> StepMatrices:
        """Per-step values, read once per state of the files."""
        return self._made(self._tables, run_id, Derived.steps)

    def trend(self, run_id: str) -> Trend:
        """All ranks together, step by step."""
        return self._made(self._trends, run_id, Derived.trend)

    def topology(self, run_id: str) -> Topology:
        """Where the ranks are."""
        return self._made(self._topologies, run_id, Derived.topology)

    def hardware(self, run_id: str) -> Hardware:
        """GPUs and their samples: the run's own, or else those of a Prometheus, which are at most a minute old."""
        own = self._made(self._hardware, run_id, Derived.hardware)
        prometheus = self._prometheus
        if own.gpus or prometheus is None:
            return own
        from rankscope.dashboards.data.prometheus_hardware import scraped_hardware

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
        """What happened to the GPUs."""
        return self._made(self._events, run_id, Derived.events)

    def _brief(self, derived: Derived) -> Brief:
        return self._sound(derived.folder, lambda: self._briefs.get(str(derived.folder), derived.version, derived.brief))

    def _made(self, memo: Memo[Held], run_id: str, read: Callable[[Derived], Held]) -> Held:
        """Part of what has been worked out."""
        derived = self._derived(run_id)
        return self._sound(derived.folder, lambda: memo.get(str(derived.folder), derived.version, lambda: read(derived)))

    def _read(self, folder: Path, read: Callable[[Path], Held]) -> Held:
        return self._sound(folder, lambda: read(folder))

    def _sound(self, folder: Path, read: Callable[[], Held]) -> Held:
        """What is cached there; what cannot be read, after a crash of the machine perhaps, is made anew, once."""
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
        """Alerts about a run, at most some seconds old."""
        return self._alerts.of_run(run_id)

    def all_alerts(self) -> AlertsFound:
        """Alerts of all runs, at most some seconds old."""
        return self._alerts.of_all()


def _named_window(run: RunSummary, window: Window) -> list[object]:
    return [run.path, window.attempt, window.first, window.past]
