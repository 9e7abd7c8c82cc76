"""Who makes derived data: this process while the caller waits, or processes beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.derive import Derived, derive
from rankscope.dashboards.data.follow import Live
from rankscope.dashboards.data.jobs import TASKS, Jobs
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.data.store import ELSEWHERE, Store, key_of

PATIENCE_S: Final = 0.8
"""So long an answer may wait for what is not there yet: most runs take less, and their page need not be drawn twice."""

_LOOK_EVERY_S: Final = 0.02


class Making(Protocol):
    """Has the derived data of runs, or has it made."""

    def finished(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """Of a run in this state; unless ``wait``, not even a moment is waited for it.

        Raises ``NotReadyError`` while it is being made, else ``RankscopeError``.
        """

    def live(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """Of a run that goes on: as it is now, or was shortly before; or, with why, as it was before that. Raises the same."""

    def known(self, run_id: str, revision: str) -> Derived | None:
        """Of a run in this state, if it has been made."""

    def made(self, key: str, task: str, arguments: Sequence[object], *, wait: bool = True) -> Path:
        """Folder that a task of ``TASKS`` has filled, for the state that ``key`` stands for. Raises as ``finished`` does."""


def _silent(_progress: Progress) -> None:
    pass


@dataclass(frozen=True, slots=True)
class MadeHere:
    """The caller waits, and its process has the memory."""

    store: Store
    tell: Tell = _silent
    once: bool = False
    """Look at a run once only: what is written to it later is not seen."""

    def finished(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """See ``Making``."""
        del wait  # there is nobody else to do it
        key = key_of(run_id) if self.once else key_of(run_id, revision)
        found = self.store.find(key)
        return Derived(found or self.store.put(key, lambda folder: derive(run, folder, self.tell)))

    def live(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """See ``Making``."""
        return self.finished(run, run_id, revision, wait=wait)

    def known(self, run_id: str, revision: str) -> Derived | None:
        """See ``Making``."""
        return _known(self.store, run_id, revision)

    def made(self, key: str, task: str, arguments: Sequence[object], *, wait: bool = True) -> Path:
        """See ``Making``."""
        del wait
        told = [str(argument) for argument in arguments]
        return self.store.find(key) or self.store.put(key, lambda folder: TASKS[task](told, folder, self.tell))


def _known(store: Store, run_id: str, revision: str) -> Derived | None:
    found = store.find(key_of(run_id, revision))
    return None if found is None else Derived(found)


@dataclass(frozen=True, slots=True)
class MadeBeside:
    """Other processes make it, also for other servers that share the store."""

    store: Store
    patience_s: float = PATIENCE_S

    def finished(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """See ``Making``."""
        return Derived(self.made(key_of(run_id, revision), "analyse", [run], wait=wait))

    def known(self, run_id: str, revision: str) -> Derived | None:
        """See ``Making``."""
        return _known(self.store, run_id, revision)

    def made(self, key: str, task: str, arguments: Sequence[object], *, wait: bool = True) -> Path:
        """See ``Making``."""
        jobs = Jobs(self.store)
        until = time.monotonic() + (self.patience_s if wait else 0.0)
        while (found := self.store.find(key)) is None:
            try:
                state = jobs.want(key, task, arguments)
            except OSError as error:
                raise _unusable(self.store, error) from error
            if state.failure is not None:
                raise RankscopeError(state.failure)
            if time.monotonic() >= until:
                raise NotReadyError(state.progress or Progress("starting"))
            time.sleep(_LOOK_EVERY_S)
        return found

    def live(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """See ``Making``."""
        del revision  # what follows it knows by itself what is new
        live = Live(self.store.root / f".live-{key_of(run_id, str(run))}", run)
        until = time.monotonic() + (self.patience_s if wait else 0.0)
        try:
            seen = live.look()
            while seen is None and time.monotonic() < until:
                time.sleep(_LOOK_EVERY_S)
                seen = live.seen()
        except OSError as error:
            raise _unusable(self.store, error) from error
        if seen is None:
            raise NotReadyError(Progress("reading the run for the first time"))
        derived = Derived(live.folder, seen.failure)
        if seen.failure is not None and not derived.is_there:
            raise RankscopeError(seen.failure)
        return derived


def _unusable(store: Store, error: OSError) -> InputError:
    return InputError(store.root, f"the cache cannot be used: {error.strerror or error}; {ELSEWHERE}")
