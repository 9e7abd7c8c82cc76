"""Analyses that a viewer asked for together. The server works them off, whether or not the page stays open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.source import NotReadyError

AT_ONCE: Final = 4
"""Maximum number of runs whose analysis is requested at a time."""
LOOK_EVERY_S: Final = 1.0

_LOG = logging.getLogger(__name__)


class Backlog:
    """Queue of runs with one thread, which ends with the last of them.

    ``analyse`` starts or continues the analysis of a run. It returns when that has ended, and raises ``NotReadyError`` before.
    """

    def __init__(self, analyse: Callable[[str], object], *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._analyse = analyse
        self._look_every_s = look_every_s
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}
        self._ended = 0
        self._pause = threading.Event()
        """Never set: a daemon thread that waits for it does not delay the end of the server."""

    @property
    def progress(self) -> Progress:
        """Number of analyses that have ended, of those that were ever requested."""
        with self._lock:
            return Progress("analysing runs", self._ended, self._ended + len(self._waiting))

    def add(self, run_ids: Iterable[str]) -> None:
        """Request analyses, each of which is in the queue once."""
        with self._lock:
            is_idle = not self._waiting
            self._waiting.update(dict.fromkeys(run_ids))
            if is_idle and self._waiting:
                threading.Thread(target=self._work, name="analyse runs", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                first = list(self._waiting)[:AT_ONCE]
            ended = [run_id for run_id in first if self._has_ended(run_id)]
            with self._lock:
                self._ended += len(ended)
                for run_id in ended:
                    del self._waiting[run_id]
                if not self._waiting:
                    return
            if len(ended) < len(first):
                self._pause.wait(self._look_every_s)

    def _has_ended(self, run_id: str) -> bool:
        try:
            self._analyse(run_id)
        except NotReadyError:
            return False
        except RankscopeError:
            return True  # the run's row in the list of runs shows the error
        except Exception:  # noqa: BLE001  the others must still be analysed; the log has the traceback
            _LOG.exception("analysis of run %r", run_id)
        return True
