"""One job at a time in a thread of its own, so that whoever gave it need not wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Background:
    """Runs jobs one after the other; an idle one costs nothing, and none keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self.busy = False
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, job: Callable[[], None]) -> None:
        """Run a job; the one before must have been asked for with ``result``."""
        assert not self.busy
        self.busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def result(self, timeout_s: float) -> tuple[bool, Exception | None]:
        """Whether the job is over, waiting for that at most so long, and the error that ended it."""
        try:
            error = self._results.get(timeout=timeout_s) if timeout_s > 0 else self._results.get_nowait()
        except queue.Empty:
            return False, None
        self.busy = False
        return True, error

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # noqa: BLE001 - it is handed to whoever asks
                self._results.put(error)
            else:
                self._results.put(None)
