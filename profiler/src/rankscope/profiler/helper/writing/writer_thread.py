"""Writer thread of the helper: a filesystem that takes seconds for a write delays nothing else."""

from __future__ import annotations

import threading
import time
from typing import Final

from rankscope.profiler.helper.writing.store import RunStore
from rankscope.runs.records import RankActivity, RankInfo

LOOK_SECONDS: Final = 0.2
LAST_TRY_SECONDS: Final = 10.0
"""Longest delay of the end by a disk that fails writes, such as a full one."""
STUCK_SECONDS: Final = 120.0
"""Longest delay of the end by a disk that does not respond."""
SETTLE_SECONDS: Final = 30.0
"""Longest wait of the tasks for the first attempt to write."""
GIVEN_UP_SECONDS: Final = 2.0
"""Longest wait for ``rank.json`` after the last records were given up."""
END_SECONDS: Final = 300.0
"""Longest duration of the end in all, even if writing progresses."""


class WriterThread:
    """Writer of the records in ``store`` and of ``rank.json``, on a thread of its own. Used from one other thread."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._wake = threading.Event()
        self._info: RankInfo | None = None
        self._activity: RankActivity | None = None
        self._activity_changed = False
        self._lock = threading.Lock()
        self._ending = False
        self._done = threading.Event()
        self._tried = False
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)

    def start(self) -> None:
        """Start the thread; records added before wait until now."""
        self._thread.start()

    @property
    def settled(self) -> bool:
        """True once a write was attempted or ``SETTLE_SECONDS`` have passed.

        The run's identity is then as certain as it will soon be: another rank may have created the run.
        """
        return self._tried or time.monotonic() - self._began > SETTLE_SECONDS

    def wake(self) -> None:
        """Signal that there is something to write."""
        self._wake.set()

    def write_rank(self, info: RankInfo) -> None:
        """Rewrite ``rank.json`` with ``info`` as soon as possible, unless a newer one comes first.

        The losses of ``store`` at the time of writing are added.
        """
        with self._lock:
            self._info = info
        self._wake.set()

    def write_activity(self, activity: RankActivity | None) -> None:
        """Rewrite ``activity.json`` with ``activity`` as soon as possible, or remove it."""
        with self._lock:
            self._activity, self._activity_changed = activity, True
        self._wake.set()

    def finish(self, info: RankInfo) -> str:
        """Write all remaining records, then ``info``, as long as there is progress. Return what was given up; empty: nothing."""
        self.write_rank(info)
        self._ending = True
        self._wake.set()
        began = time.monotonic()
        while not self._done.wait(LOOK_SECONDS / 4):
            now = time.monotonic()
            patience = LAST_TRY_SECONDS if self._store.failing else STUCK_SECONDS
            if now - max(began, self._store.moved_at) > patience or now - began > END_SECONDS:
                break
        else:
            return ""
        if not self._store.failing:
            return "the last records, because the disk does not respond"
        # The end of the rank matters more than its last steps, and takes no room.
        steps = self._store.give_up()
        self._done.wait(GIVEN_UP_SECONDS)
        return f"the last {steps:,} steps ({self._store.reason})"

    def _work(self) -> None:
        while True:
            # Wait a moment to gather records, so that they are written together.
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            ending = self._ending
            try:
                written = self._store.flush(now=ending)
                if written and ending:
                    # Some filesystems report lost writes only at close; ``rank.json`` must include them.
                    self._store.close()
                written = written and self._write_rank()
                self._write_activity()
            except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
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

    def _write_activity(self) -> None:
        with self._lock:
            activity, changed, self._activity_changed = self._activity, self._activity_changed, False
        if changed:
            self._store.write_activity(activity)
