"""Collecting in the background, so that a scrape never waits for a driver or a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

STALE_AFTER_INTERVALS: Final = 5
"""Values older than this many intervals, and than twice the last pass took, are not shown."""

_LONGEST_RETRY_INTERVALS: Final = 10
_NO_SAMPLE: Final = "no sample yet"


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """What a collector knows at this moment.

    ``last`` is its last result however old, None before the first; ``fresh`` says whether its values may still be shown.
    ``ok``: the last pass succeeded and is fresh. ``reason`` says why not.
    """

    last: T | None
    fresh: bool
    ok: bool
    age_s: float | None
    duration_s: float
    reason: str | None


class CollectorLoop(Generic[T]):
    """Calls ``collect`` every ``interval_s`` seconds in a thread of its own and keeps the last result.

    An exception costs that pass only: it is logged once, and the next tries come after 1, 2, 4, 8, 10, 10, … intervals. A call
    that never returns costs this thread only: its values go stale and disappear.
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
        self._logged: str | None = None
        # A daemon: a thread stuck in a driver must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"collector-{name}", daemon=True)

    def start(self) -> None:
        """Begin collecting."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait a little; False when it is stuck."""
        self._stop.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait_for_first_pass(self, timeout_s: float) -> bool:
        """Wait until one pass has ended, well or not; False when it takes longer."""
        return self._first_pass.wait(timeout_s)

    def latest(self) -> Snapshot[T]:
        """The present state; never blocks on the collector."""
        now = time.monotonic()
        with self._lock:
            last, last_at, error = self._last, self._last_at, self._error
            running = self._pass_began is not None
            running_s = now - self._pass_began if self._pass_began is not None else 0.0
            last_duration_s = self._duration_s
        duration_s = max(last_duration_s, running_s)
        age_s = now - last_at if last_at is not None else None
        # A driver that is slow, but answers, must not make its GPUs look as if they came and went.
        stale_after_s = max(STALE_AFTER_INTERVALS * self._interval_s, 2 * last_duration_s)
        fresh = age_s is not None and age_s <= stale_after_s
        if running_s > stale_after_s or (running and not fresh and error is None):
            # No seconds in the text: the reason stays one reason, logged once.
            error = "the present pass does not end"
        elif not fresh and error is None:
            error = "the last sample is too old"
        self._log(error)
        return Snapshot(last, fresh, error is None, age_s, duration_s, error)

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
            except Exception as problem:  # noqa: BLE001  whatever goes wrong in a collector costs that collector only
                error = str(problem) or type(problem).__name__
            ended = time.monotonic()
            with self._lock:
                self._pass_began, self._duration_s, self._error = None, ended - began, error
                if error is None:
                    self._last, self._last_at = result, ended
            self._log(error)
            self._first_pass.set()
            failures = 0 if error is None else failures + 1
            pause_s = self._interval_s * min(2 ** max(0, min(failures, 10) - 1), _LONGEST_RETRY_INTERVALS)
            self._stop.wait(max(0.0, began + pause_s - ended))

    def _log(self, reason: str | None) -> None:
        with self._lock:
            before = self._logged
            if reason in (before, _NO_SAMPLE):
                return
            self._logged = reason
        if reason is None:
            logger.info("collector %s works again", self.name)
        else:
            logger.warning("collector %s: %s", self.name, reason)
