"""Background thread of a collector, so that a scrape never waits for a driver or a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from rankscope.base.problems import ProblemLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

STALE_AFTER_INTERVALS: Final = 5
"""Values are not shown if they are older than this many intervals and older than twice the duration of the last pass."""

_LONGEST_RETRY_INTERVALS: Final = 10
_NO_SAMPLE: Final = "no sample yet"


@dataclass(frozen=True, slots=True)
class CollectorState(Generic[T]):
    """State of a collector at one moment.

    Attributes:
        last: the last result, however old; None before the first.
        fresh: the values of ``last`` may still be shown.
        ok: the last pass succeeded and is fresh.
        age_s: age of ``last``; None before the first.
        duration_s: duration of the last pass, or of the current one if that is longer.
        reason: why it is not ``ok``; else None.
    """

    last: T | None
    fresh: bool
    ok: bool
    age_s: float | None
    duration_s: float
    reason: str | None

    @property
    def value(self) -> T | None:
        """The last result while it may still be shown; else None."""
        return self.last if self.fresh else None


class CollectorLoop(Generic[T]):
    """Thread that calls ``collect`` every ``interval_s`` seconds and keeps the last result.

    An exception is logged once; retries follow after 1, 2, 4, 8, 10, 10, … intervals. If a call never returns, the values go
    stale and disappear; nothing else is affected.
    """

    def __init__(self, name: str, collect: Callable[[], T], *, interval_s: float) -> None:
        self.name = name
        self._collect = collect
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._first_pass = threading.Event()
        self._last: T | None = None
        self._last_at: float | None = None
        self._duration_s = 0.0
        self._pass_began: float | None = None
        self._error: str | None = _NO_SAMPLE
        self._problems = ProblemLog(
            partial(logger.warning, "collector %s: %s", name), partial(logger.info, "collector %s works again", name)
        )
        # A daemon thread: one that is stuck in a driver must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"collector-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; return False if it does not end within ``timeout_s``."""
        self._stop.set()
        if self._thread.ident is not None:  # started
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait_for_first_pass(self, timeout_s: float) -> bool:
        """Wait until one pass has succeeded or failed; return False on timeout."""
        return self._first_pass.wait(timeout_s)

    def latest(self) -> CollectorState[T]:
        """Return the current state; never blocks on the collector."""
        now = time.monotonic()
        with self._lock:
            last, last_at, error = self._last, self._last_at, self._error
            running = self._pass_began is not None
            running_s = now - self._pass_began if self._pass_began is not None else 0.0
            last_duration_s = self._duration_s
        duration_s = max(last_duration_s, running_s)
        age_s = now - last_at if last_at is not None else None
        # The limit grows with the duration of a pass, so that the values of a slow driver do not flap.
        stale_after_s = max(STALE_AFTER_INTERVALS * self._interval_s, 2 * last_duration_s)
        fresh = age_s is not None and age_s <= stale_after_s
        if running_s > stale_after_s or (running and not fresh and error is None):
            # The text contains no seconds, so that the same reason is logged once.
            error = "the present pass does not end"
        elif not fresh and error is None:
            error = "the last sample is too old"
        if error != _NO_SAMPLE:
            self._problems.report(error)
        return CollectorState(last, fresh, error is None, age_s, duration_s, error)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            with self._lock:
                self._pass_began = began
            error: str | None = None
            result: T | None = None
            try:
                result = self._collect()
            except Exception as problem:  # noqa: BLE001  an error in one collector must not affect the others
                error = str(problem) or type(problem).__name__
            ended = time.monotonic()
            with self._lock:
                self._pass_began, self._duration_s, self._error = None, ended - began, error
                if error is None:
                    self._last, self._last_at = result, ended
            self._problems.report(error)
            self._first_pass.set()
            failures = 0 if error is None else failures + 1
            pause_s = self._interval_s * min(2 ** max(0, min(failures, 10) - 1), _LONGEST_RETRY_INTERVALS)
            self._stop.wait(max(0.0, began + pause_s - ended))
