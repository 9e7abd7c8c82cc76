"""Data of the runs in a folder, computed on request and cached while the runs' files do not change."""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.alerts.data import FolderAlerts
from rankscope.dashboards.compare.data import Compared, read_comparison
from rankscope.dashboards.data.brief import Brief, StoredBrief, stored_brief
from rankscope.dashboards.data.memo import Memo
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError, RunSummary, Stale
from rankscope.dashboards.store.cache import Store, is_unfinished, key_of
from rankscope.dashboards.store.derive import Derived
from rankscope.dashboards.store.footprint import footprint
from rankscope.dashboards.store.making import MadeHere
from rankscope.dashboards.store.run_folder import RunFolder
from rankscope.dashboards.timeline.data import WindowData, read_window
from rankscope.dashboards.timeline.windows import CAPTURED, EXPORT, Window, Windows, kernels_of, read_windows, steps_of
from rankscope.dashboards.whatif.data import Scenarios, read_scenarios
from rankscope.runs.paths import verdict_file
from rankscope.runs.records import KernelRecord, StepRecord

if TYPE_CHECKING:
    from rankscope.alerts.prometheus import Prometheus  # needs a package that is installed only for queries to a Prometheus

WHATIF_EVERY_S: Final = 300.0
"""Refresh interval of the what-if and the comparisons of a live run; reading all of a large run takes minutes."""


_KEPT: Final = {
    **dict.fromkeys(("brief", "stored", "captured"), 1 << 15),  # a line per run
    "records": 256,
    **dict.fromkeys(("analysis", "windows"), 64),
    "compare": 32,
    **dict.fromkeys(("blame", "steps", "trend", "script", "topology", "events", "hardware", "whatif"), 16),
    "window": 16,  # of 1,024 ranks, about 6 MB
}
"""Most cached values of each kind; the large ones of one kind evict neither those of another nor the lines of the list."""

_LIVE: Final = ("starting", "live")

Held = TypeVar("Held")


def _part(read: Callable[[Derived], Held]) -> Callable[[DiskRuns, str], Held]:
    """Return a method of ``DiskRuns`` that reads a part of a run's derived data, cached until they change."""

    def part(self: DiskRuns, run_id: str) -> Held:
        found: Held = self._of(self._derived(run_id), read.__name__)
        return found

    return part


class DiskRuns:
    """``RunSource`` over ``path``: a run directory, or a folder whose sub-folders are run directories.

    ``prometheus`` adds alerts to those in the runs' files.
    ``making`` runs the slow tasks; without one, the caller waits for them and their results are deleted with this object.
    ``look_again_s`` and the errors raised: see ``RunFolder``.
    """

    def __init__(
        self,
        path: Path,
        making: MadeHere | None = None,
        *,
        prometheus: Prometheus | None = None,
        clock_s: Callable[[], float] = time.time,
        look_again_s: float = 0.0,
    ) -> None:
        self._folder = RunFolder(path, clock_s=clock_s, look_again_s=look_again_s)
        alerts = FolderAlerts(self._folder, prometheus, clock_s=clock_s)
        self.runs, self.summary = self._folder.runs, self._folder.summary
        self.alerts, self.all_alerts = alerts.of_run, alerts.of_all
        self._clock_s = clock_s
        if making is None:
            folder = tempfile.mkdtemp(prefix="rankscope-dashboard-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            making = MadeHere(Store(Path(folder)))
        self._making = making
        self.cancel = making.cancel
        self._memos = {kind: Memo(limit) for kind, limit in _KEPT.items()}
        self._damaged: set[Path] = set()
        """Cached folders that could not be read."""

    def version(self, run_id: str) -> str:
        """Return the version of the derived data, which may be older than the run's files."""
        return self._derived(run_id).version

    def stale(self, run_id: str) -> Stale | None:
        """Return the reason and age of outdated data: a live run whose follower fails."""
        return self._derived(run_id, wait=False).stale

    analysis = _part(Derived.analysis)
    blame = _part(Derived.blame)
    steps = _part(Derived.steps)
    trend = _part(Derived.trend)
    script = _part(Derived.script)
    topology = _part(Derived.topology)
    events = _part(Derived.events)
    hardware = _part(Derived.hardware)

    def brief(self, run_id: str) -> Brief:
        """Return the summary of a run for lists, without waiting."""
        return self._brief(self._derived(run_id, wait=False))

    def known_brief(self, run: RunSummary) -> Brief | None:
        """Return the summary of a run if it is cached."""
        derived = None if run.problem is not None else self._making.known(run)
        return None if derived is None else self._brief(derived)

    def stored_brief(self, run: RunSummary) -> StoredBrief | None:
        """Return the summary by the verdict in the run directory, read once per state of the files."""
        if run.problem is not None or run.status not in ("finished", "failed"):
            return None
        read = partial(stored_brief, Path(run.path), run.last_write_unix_ns)
        # The run's revision leaves the verdict out, which is stored seconds after the end of the run.
        return self._memos["stored"].get(run.path, f"{run.revision} {_modified_ns(verdict_file(Path(run.path)))}", read)

    def compared(self, run_ids: Sequence[str], at: int | None = None) -> Compared:
        """Return runs compared with the first; with a live one, compared anew every ``WHATIF_EVERY_S`` while requested."""
        arguments = ["" if at is None else str(at)]
        return self._now_and_then(run_ids, "compare", arguments, WHATIF_EVERY_S, read_comparison)

    def scenarios(self, run_id: str) -> Scenarios:
        """Return the what-if scenarios; for a live run they are recomputed every ``WHATIF_EVERY_S`` while requested."""
        return self._now_and_then([run_id], "whatif", [], WHATIF_EVERY_S, read_scenarios)

    def _now_and_then(
        self, run_ids: Sequence[str], task: str, arguments: list[str], every_s: float, read: Callable[[Path], Held]
    ) -> Held:
        """Return a task's result. With a live run it is recomputed every ``every_s``; until then the previous one is returned."""
        runs = [self._readable(run_id) for run_id in run_ids]
        interval = f"{self._clock_s() // every_s:.0f}"
        states = [interval if run.status in _LIVE else run.revision for run in runs]
        name = key_of(*arguments, *run_ids)
        key = key_of(task, name, *(run.path for run in runs), *states)
        try:
            folder = self._making.made(key, task, [*arguments, *(run.path for run in runs)], runs)
        except NotReadyError:
            before: Held | None = self._memos[task].last(name) if interval in states else None
            if before is None:
                raise
            return before
        return self._sound(folder, lambda _: self._memos[task].get(name, key, lambda: read(folder)))

    def windows(self, run: RunSummary) -> Windows:
        """Return the captured windows of a run as of ``run``."""
        key = key_of("windows", run.path, self._captured(run))
        made = partial(self._making.made, key, "windows", [run.path], [run])
        return self._memos["windows"].get(key, key, lambda: self._sound(made(), read_windows))

    def window(self, run: RunSummary, window: Window) -> WindowData:
        """Return the data of one captured window."""
        key = self._key_of_window("window", run, window)
        made = partial(self._making.made, key, "window", _named_window(run, window), [run])
        return self._memos["window"].get(key, key, lambda: self._sound(made(), read_window))

    def window_steps(self, run: RunSummary, window: Window, rank: int) -> list[StepRecord]:
        """Return the step records of a rank in a window."""
        key = key_of(self._key_of_window("steps", run, window), str(rank))
        return self._memos["records"].get(key, key, lambda: steps_of(Path(run.path), rank, window))

    def window_kernels(self, run: RunSummary, window: Window, rank: int) -> list[KernelRecord]:
        """Return the costliest kernels of a rank in a window."""
        key = key_of(self._key_of_window("kernels", run, window), str(rank))
        return self._memos["records"].get(key, key, lambda: kernels_of(Path(run.path), rank, window))

    def perfetto(self, run: RunSummary, window: Window) -> Path:
        """Return the file of a window for Perfetto."""
        key = self._key_of_window("perfetto", run, window)
        return self._making.made(key, "perfetto", _named_window(run, window), [run], wait=False) / EXPORT

    def _key_of_window(self, task: str, run: RunSummary, window: Window) -> str:
        return key_of(task, run.path, self._captured(run), str(window.first), str(window.past))

    def _captured(self, run: RunSummary) -> str:
        """Return a revision that changes with each captured window, but not with each step.

        Raises ``RankscopeError`` for an unreadable run, such as a link that leads out of the folder.
        """
        if run.problem is not None:
            raise RankscopeError(run.problem)
        return self._memos["captured"].get(
            run.path, run.revision, lambda: footprint(Path(run.path), CAPTURED, traces=True).revision
        )

    def _brief(self, derived: Derived) -> Brief:
        brief: Brief = self._of(derived, "brief")
        return brief

    def _of(self, derived: Derived, part: str) -> Any:
        """Return a part of the derived data: the result of a method of ``Derived``."""
        memo = self._memos[part]
        return self._sound(derived.folder, lambda _: memo.get(str(derived.folder), derived.version, getattr(derived, part)))

    def _sound(self, folder: Path, read: Callable[[Path], Held]) -> Held:
        """Read a cached folder. An unreadable one, for example after a machine crash, is deleted and recomputed once."""
        try:
            return read(folder)
        except InputError as error:
            if is_unfinished(folder) or folder in self._damaged:
                raise
            self._damaged.add(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise NotReadyError(Progress("making anew what could not be read any more")) from error

    def _derived(self, run_id: str, *, wait: bool = True) -> Derived:
        summary = self._readable(run_id)
        get = self._making.live if summary.status in _LIVE else self._making.finished
        return get(summary, wait=wait)

    def _readable(self, run_id: str) -> RunSummary:
        summary = self.summary(run_id)
        if summary.problem is not None:
            raise RankscopeError(summary.problem)
        return summary


def _modified_ns(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


def _named_window(run: RunSummary, window: Window) -> list[object]:
    return [run.path, window.attempt, window.first, window.past]
