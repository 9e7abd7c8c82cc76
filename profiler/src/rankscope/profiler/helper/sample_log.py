"""Writer of hardware samples to the run directory, on a thread that a slow disk may block."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rankscope.runs.paths import host_dir
from rankscope.runs.records import HardwareSample
from rankscope.runs.writer import JsonLinesWriter, run_is_gone

MAX_PENDING: Final = 2000
"""Largest number of samples kept while the folder cannot be written: under 1 MB, and ten minutes of 16 GPUs."""
_BATCH: Final = 200


class SampleLog:
    """Appender to ``hosts/NAME``. Samples that cannot be written now are kept, within bounds, and retried with the next ones."""

    def __init__(self, run_dir: Path, host: str, say: Callable[[str], None], *, max_pending: int = MAX_PENDING) -> None:
        self._run_dir = run_dir
        self._folder = host_dir(run_dir, host)
        self._writer = JsonLinesWriter(self._folder, "gpu")
        self._say = say
        self._max_pending = max_pending
        self._pending: deque[HardwareSample] = deque()
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._complained = False
        self.dropped = 0
        """Number of samples dropped because the folder could not be written for too long."""
        self.run_gone = False
        """True if the run directory was removed: there is nothing left to do."""
        self._thread = threading.Thread(target=self._work, name="hardware samples", daemon=True)
        self._thread.start()

    def add(self, samples: Iterable[HardwareSample]) -> None:
        """Queue samples. Never waits for the disk."""
        with self._guard:
            self._pending.extend(samples)
            self._bound()
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Write the queued samples, waiting at most ``seconds``."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        lost = self.dropped + len(self._pending) + self._writer.unconfirmed
        if lost:
            self._say(f"{lost} hardware samples could not be written to {self._folder}")

    def _bound(self) -> None:
        while len(self._pending) > self._max_pending:
            self._pending.popleft()
            self.dropped += 1

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self._write()
        self._write()
        with suppress(OSError):
            self._writer.close()

    def _write(self) -> None:
        while batch := self._batch():
            try:
                if run_is_gone(self._run_dir):
                    # Writing now would create a folder that is not a run.
                    self.run_gone = True
                    continue
                self._writer.append(*batch)
            except OSError as error:
                with self._guard:
                    self._pending.extendleft(reversed(batch[self._writer.landed :]))
                    self._bound()
                if not self._complained:
                    self._complained = True
                    self._say(f"cannot write hardware samples to {self._folder} ({error.strerror or error}); will try again")
                return

    def _batch(self) -> list[HardwareSample]:
        with self._guard:
            return [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
