"""The helper's thread that writes: a filesystem that takes seconds for a write holds up nothing else."""

from __future__ import annotations

import threading
import time
from typing import Final

from rankscope.profiler.helper.store import RunStore
from rankscope.runs.records import RankInfo

LOOK_SECONDS: Final = 0.2
LAST_TRY_SECONDS: Final = 10.0
"""How long a full disk may hold up the end."""
STUCK_SECONDS: Final = 120.0
"""How long a disk that does not answer at all may."""
SETTLE_SECONDS: Final = 30.0
"""How long others wait for the first attempt to write."""
END_SECONDS: Final = 300.0
"""How long the end may take in all, however well it goes."""


class Storing:
    """Writes what ``store`` was given, and ``rank.json``, on a thread of its own. Used from one other thread."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._wake = threading.Event()
        self._info: RankInfo | None = None
        self._lock = threading.Lock()
        self._ending = False
        self._done = threading.Event()
        self._tried = False
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="storing", daemon=True)

    def start(self) -> None:
        """Begin; what was given before waits until now."""
        self._thread.start()

    @property
    def settled(self) -> bool:
        """Whether the run's identity is known as well as it will be soon: another rank may have made the run."""
        return self._tried or time.monotonic() - self._began > SETTLE_SECONDS

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    def write_rank(self, info: RankInfo) -> None:
        """Rewrite ``rank.json`` with this, as soon as that is possible and unless a newer one comes first.

        What ``store`` has lost is added as it is then.
        """
        with self._lock:
            self._info = info
        self._wake.set()

    def finish(self, info: RankInfo) -> bool:
        """Write all that is left and then ``info``; go on as long as something moves. Returns whether it is all written."""
        self.write_rank(info)
        self._ending = True
        self._wake.set()
        began = time.monotonic()
        while not self._done.wait(LOOK_SECONDS / 4):
            now = time.monotonic()
            patience = LAST_TRY_SECONDS if self._store.failing else STUCK_SECONDS
            if now - max(began, self._store.moved_at) > patience or now - began > END_SECONDS:
                return False
        return True

    def _work(self) -> None:
        while True:
            # A moment is given to gather records, so that they are written together.
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            ending = self._ending
            try:
                written = self._store.flush(now=ending)
                if written and ending:
                    # Only now some filesystems say what they have not kept, which belongs into ``rank.json``.
                    self._store.close()
                written = written and self._write_rank()
            except Exception as error:  # noqa: BLE001  # nobody else hears of what goes wrong on this thread
                self._store.fail(error)
                written = False
            self._tried = True
            if ending:
                if written:
                    self._done.set()
                    return
                time.sleep(LOOK_SECONDS)

    def _write_rank(self) -> bool:
        with self._lock:
            info = self._info
        if info is None:
            return True
        if not self._store.write_rank(info):
            return False
        with self._lock:
            if self._info is info:
                self._info = None
        return True
