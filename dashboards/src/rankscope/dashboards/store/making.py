"""Computation of derived data: in this process while the caller waits, or in processes beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from rankscope.analysis.evidence.rank_columns import ALL_METRICS
from rankscope.analysis.whatif.run_answer import TABLE_METRICS
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.source import NotReadyError, RunSummary
from rankscope.dashboards.store.cache import ELSEWHERE, Store, key_of
from rankscope.dashboards.store.derive import Derived, derive
from rankscope.dashboards.store.jobs import Jobs
from rankscope.dashboards.store.tasks import TASKS
from rankscope.dashboards.whatif.data import StepRecords, make_scenarios

PATIENCE_S: Final = 0.8
"""Longest wait of a request for missing data; most runs take less, so that their page is drawn only once."""

_LOOK_EVERY_S: Final = 0.02

Result = TypeVar("Result")


def _silent(_progress: Progress) -> None:
    pass


class MadeHere:
    """Provider of the derived data of runs, which it computes if missing: the caller waits, and the memory is used here.

    Raises ``NotReadyError`` while other processes compute them, else ``RankscopeError``. ``wait``: see ``MadeBeside``.
    """

    def __init__(self, store: Store, tell: Tell = _silent) -> None:
        self.store = store
        self._tell = tell
        self._records: tuple[str, StepRecords] | None = None
        """Step records that the last analysis has read, and the key of its run, for a what-if that follows."""

    def made(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary], *, wait: bool = True) -> Path:
        """Return the folder that a task of ``TASKS`` on ``runs`` has filled for ``key``."""
        del wait
        return self.store.find(key) or self.store.put(key, lambda folder: self._make(task, arguments, runs, folder))

    def _make(self, task: str, arguments: Sequence[object], runs: Sequence[RunSummary], folder: Path) -> None:
        if task == "analyse":
            now = time.time_ns()
            evidence = derive(Path(runs[0].path), folder, self._tell, metrics=(*ALL_METRICS, *TABLE_METRICS))
            if not evidence.reader.skipped_lines and not evidence.reader.unusable:
                self._records = _key(runs[0]), StepRecords(evidence.table, now)
        elif task == "whatif":
            key, records = self._records or ("", None)
            self._records = None
            make_scenarios(Path(runs[0].path), folder, self._tell, records if key == _key(runs[0]) else None)
        else:
            TASKS[task]([str(argument) for argument in arguments], folder, self._tell)

    def finished(self, run: RunSummary, *, wait: bool = True) -> Derived:
        """Return the derived data of a run at this revision."""
        return Derived(self.made(_key(run), "analyse", [run.path], [run], wait=wait))

    def live(self, run: RunSummary, *, wait: bool = True) -> Derived:
        """Return the derived data of a live run: recent, or older with the reason for its age."""
        return self.finished(run, wait=wait)

    def known(self, run: RunSummary) -> Derived | None:
        """Return the derived data of a run at this revision if it has been computed."""
        found = self.store.find(_key(run))
        return None if found is None else Derived(found)

    def cancel(self, key: str) -> None:
        """End the computation for ``key``, if another process does it."""


def _key(run: RunSummary) -> str:
    """Return the key of a run's data. Commands in the analysis name the path, and another run may have the same id."""
    return key_of(run.run_id, run.path, run.revision)


class MadeBeside(MadeHere):
    """Provider of data that processes beside this one compute, each with at most ``memory_bytes`` of memory.

    Without ``wait``, it never blocks, else ``patience_s`` at most.
    """

    def __init__(self, store: Store, *, memory_bytes: int | None = None, patience_s: float = PATIENCE_S) -> None:
        super().__init__(store)
        self.jobs = Jobs(store, memory_bytes)
        self._patience_s = patience_s

    def made(self, key: str, task: str, arguments: Sequence[object], runs: Sequence[RunSummary], *, wait: bool = True) -> Path:
        """See ``MadeHere``."""
        return self._patiently(lambda: self.jobs.result(key, task, arguments, runs), wait=wait)

    def live(self, run: RunSummary, *, wait: bool = True) -> Derived:
        """See ``MadeHere``."""
        key = key_of("live", run.run_id, run.path)
        derived = Derived(*self._patiently(lambda: self.jobs.followed(key, run), wait=wait))
        if derived.failure is not None and not derived.is_there:
            raise RankscopeError(derived.failure)
        return derived

    def cancel(self, key: str) -> None:
        """See ``MadeHere``."""
        self.jobs.cancel(key)

    def _patiently(self, ask: Callable[[], Result], *, wait: bool) -> Result:
        until = time.monotonic() + (self._patience_s if wait else 0.0)
        while True:
            try:
                return ask()
            except NotReadyError:
                if time.monotonic() >= until:
                    raise
            except OSError as error:
                raise InputError(self.store.root, f"the cache cannot be used: {error.strerror or error}; {ELSEWHERE}") from error
            time.sleep(_LOOK_EVERY_S)
