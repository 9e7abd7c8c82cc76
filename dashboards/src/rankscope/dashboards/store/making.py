"""Computation of derived data: in this process while the caller waits, or in processes beside it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.store.cache import ELSEWHERE, Store, key_of
from rankscope.dashboards.store.derive import Derived
from rankscope.dashboards.store.follow import Live
from rankscope.dashboards.store.jobs import TASKS, Jobs

PATIENCE_S: Final = 0.8
"""Longest wait of a request for missing data; most runs take less, so that their page is drawn only once."""

_LOOK_EVERY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Making(ABC):
    """Provider of the derived data of runs, which it computes if missing.

    Raises ``NotReadyError`` while data are being computed, else ``RankscopeError``; without ``wait``, it never blocks for it.
    """

    store: Store

    @abstractmethod
    def made(self, key: str, task: str, arguments: Sequence[object], *, wait: bool = True) -> Path:
        """Return the folder that a task of ``TASKS`` has filled for ``key``."""

    def key(self, run: Path, run_id: str, revision: str) -> str:
        """Return the key of a run's data. Commands in the analysis name the path, and another run may have the same id."""
        return key_of(run_id, str(run), revision)

    def finished(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """Return the derived data of a run at this revision."""
        return Derived(self.made(self.key(run, run_id, revision), "analyse", [run], wait=wait))

    def live(self, run: Path, run_id: str, revision: str, *, wait: bool = True) -> Derived:
        """Return the derived data of a live run: recent, or older with the reason for its age."""
        return self.finished(run, run_id, revision, wait=wait)

    def known(self, run: Path, run_id: str, revision: str) -> Derived | None:
        """Return the derived data of a run at this revision if it has been computed."""
        found = self.store.find(self.key(run, run_id, revision))
        return None if found is None else Derived(found)


def _silent(_progress: Progress) -> None:
    pass


@dataclass(frozen=True, slots=True)
class MadeHere(Making):
    """``Making`` in this process: the caller waits, and the memory is used here."""

    tell: Tell = _silent
    once: bool = False
    """Read a run only once: later writes to it are ignored."""

    def key(self, run: Path, run_id: str, revision: str) -> str:
        """See ``Making``."""
        return key_of(run_id, str(run), "" if self.once else revision)

    def made(self, key: str, task: str, arguments: Sequence[object], *, wait: bool = True) -> Path:
        """See ``Making``."""
        del wait  # no other process does it
        told = [str(argument) for argument in arguments]
        return self.store.find(key) or self.store.put(key, lambda folder: TASKS[task](told, folder, self.tell))


@dataclass(frozen=True, slots=True)
class MadeBeside(Making):
    """``Making`` in other processes, also for other servers that share the store."""

    patience_s: float = PATIENCE_S

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
        del revision  # the follower detects changes itself
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
