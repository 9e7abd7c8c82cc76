"""Builders of derived data: in this process, while the caller waits, or in processes beside it, without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankscope.analysis.evidence.step_table.rank_columns import ALL_METRICS
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.whatif.run_answer import TABLE_METRICS
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.data.source import BEING_WRITTEN, NotReadyError, RunSummary
from rankscope.dashboards.store.cache import Store, key_of
from rankscope.dashboards.store.derive import DerivedData, read_run, write_derived
from rankscope.dashboards.store.jobs import AnalysisProcess, Jobs
from rankscope.dashboards.store.tasks import TASKS
from rankscope.dashboards.whatif.data import SIMULATING, StepRecords, WhatIfAnswer, answer_of, write_answer
from rankscope.runs.decoders import make_decoders
from rankscope.runs.reader import RunReader

SILENT_FOLLOWED_S: Final = 86_400.0
"""Time of silence within which a run that is looked at is followed: what its ranks do is refreshed while it stands still."""


def _ignore(_progress: Progress) -> None:
    pass


class InlineBuilder:
    """Builder that computes missing data in this process: the caller waits, and the memory is used here.

    Raises ``RankscopeError``, and ``NotReadyError`` while other processes compute the data.
    """

    waits: bool = True
    """True if callers wait for what is missing."""

    def __init__(self, store: Store, on_progress: OnProgress = _ignore) -> None:
        self.store = store
        self._on_progress = on_progress
        self._answer: tuple[str, Future[WhatIfAnswer]] | None = None
        """What-if from the step records that the last analysis has read, and the key of its run."""

    def result(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary]) -> Path:
        """Return the folder that a task of ``TASKS`` on ``runs`` has filled for ``key``."""
        return self.store.find(key) or self.store.put(key, lambda folder: self._make(task, arguments, runs, folder))

    def _make(self, task: str, arguments: Sequence[object], runs: Sequence[RunSummary], folder: Path) -> None:
        if task == "analyse":
            self._analyse(runs[0], folder)
        elif task == "whatif" and self._answer is not None and self._answer[0] == _key(runs[0]):
            answer, self._answer = self._answer[1], None
            self._on_progress(Progress(SIMULATING))
            write_answer(answer.result(), folder)
        else:
            TASKS[task]([str(argument) for argument in arguments], folder, self._on_progress)

    def _analyse(self, run: RunSummary, folder: Path) -> None:
        """Analyse a run. Its what-if is simulated beside that, from the same records: a report has both."""
        path, now = Path(run.path), time.time_ns()

        def simulate(reader: RunReader, table: StepTable) -> None:
            if not reader.skipped_lines and not reader.unusable:
                make_decoders()
                beside = ThreadPoolExecutor(1, thread_name_prefix="what-if")
                self._answer = _key(run), beside.submit(answer_of, path, _ignore, StepRecords(table, now))
                beside.shutdown(wait=False)

        write_derived(read_run(path, self._on_progress, (*ALL_METRICS, *TABLE_METRICS), simulate), folder, self._on_progress)

    def derived(self, run: RunSummary, *, listed: bool = False) -> DerivedData:
        """Return the derived data of a run: at this revision, or older with the reason. ``listed``: for a list of runs."""
        del listed
        return DerivedData(self.result(_key(run), "analyse", [run.path], [run]))

    def cached(self, run: RunSummary) -> DerivedData | None:
        """Return the derived data of a run at this revision if they are cached; that does not count as use of the cache."""
        folder = self.store.peek(_key(run))
        return None if folder is None else DerivedData(folder)

    def cancel(self, key: str) -> bool:
        """Stop waiting for ``key``. Return whether its computation ends; another viewer may still wait for it."""
        del key
        return True


def _key(run: RunSummary) -> str:
    """Return the key of a run's data. Commands in the analysis name the path, and another run may have the same id."""
    return key_of(run.run_id, run.path, run.revision)


def _following(run: RunSummary) -> str:
    """Return the key of the follower of a run."""
    return key_of("live", run.run_id, run.path)


class JobBuilder(InlineBuilder):
    """Builder of data that processes beside this one compute, with at most ``memory_bytes`` together. It never waits."""

    waits = False

    def __init__(
        self, store: Store, *, memory_bytes: int | None = None, clock_s: Callable[[], float] = time.time, jobs: Jobs | None = None
    ) -> None:
        super().__init__(store)
        self.jobs = jobs or Jobs(store, memory_bytes)
        self._clock_s = clock_s

    def result(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary]) -> Path:
        """See ``InlineBuilder``."""
        return self.jobs.result(key, task, arguments, runs)

    def cached(self, run: RunSummary) -> DerivedData | None:
        """See ``InlineBuilder``. Of a live run, what its follower has written."""
        if run.status not in BEING_WRITTEN:
            return super().cached(run)
        follower = self.jobs.follower(_following(run), used=False)
        return None if follower is None or not _of(follower).is_there else _of(follower)

    def derived(self, run: RunSummary, *, listed: bool = False) -> DerivedData:
        """See ``InlineBuilder``."""
        following, key = _following(run), _key(run)
        if run.status in BEING_WRITTEN:
            return self._followed(following, run, watched=not listed)
        if (folder := self.store.find(key)) is not None:
            if run.status == "finished":
                self.jobs.end(following)
            return DerivedData(folder)
        follower = self.jobs.follower(following)
        if run.status == "silent" and (follower is not None or (not listed and self._is_recent(run))):
            return self._followed(following, run, watched=not listed)
        if follower is None or not _of(follower).is_there:
            return super().derived(run)
        return self._handed_over(run, following, follower)

    def _is_recent(self, run: RunSummary) -> bool:
        return self._clock_s() - (run.last_write_unix_ns or 0) / 1e9 <= SILENT_FOLLOWED_S

    def _followed(self, following: str, run: RunSummary, *, watched: bool) -> DerivedData:
        derived = _of(self.jobs.followed(following, run, watched=watched))
        if derived.failure is not None and not derived.is_there:
            raise RankscopeError(derived.failure)
        return derived

    def _handed_over(self, run: RunSummary, following: str, follower: AnalysisProcess) -> DerivedData:
        """Return what the follower of a run that has ended wrote, until the analysis of the whole run is there."""
        key, update = _key(run), follower.report.update
        assert update is not None
        derived = _of(follower)
        if derived.failure is None and (update.revision != run.revision or update.is_final):
            if update.revision == run.revision:
                self.jobs.end(following, publish_as=key)
            return replace(derived, waits_for="the last records of the run are being read")
        try:
            return DerivedData(self.result(key, "analyse", [run.path], [run]))
        except NotReadyError:
            return replace(derived, failure=None, waits_for="the run has ended, and all of it is being analysed")
        except RankscopeError as error:
            return replace(derived, failure=str(error))

    def cancel(self, key: str) -> bool:
        """See ``InlineBuilder``."""
        return self.jobs.cancel(key)


def _of(follower: AnalysisProcess) -> DerivedData:
    assert follower.folder is not None
    assert follower.report.update is not None
    return DerivedData(follower.folder, follower.report.update.failure)
