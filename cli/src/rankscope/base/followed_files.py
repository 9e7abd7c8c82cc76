"""Files that are read again while a server runs. A hung file system blocks neither its event loop nor its exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

LOOK_EVERY_S: Final = 1.0
"""Minimum seconds between two checks of files for changes."""
PATIENCE_S: Final = 1.0
"""Seconds from the start of a reading for which requests wait for it; from then on they use the last values."""

T = TypeVar("T")


class SharedReading:
    """Reading of files in a daemon thread, one at a time, for the coroutines of one event loop. ``read`` must not raise."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read
        self._done: asyncio.Future[None] | None = None
        self._began_s = 0.0

    async def run(self) -> None:
        """Read, or join the reading in progress; return when it ends, or ``PATIENCE_S`` after its start."""
        loop = asyncio.get_running_loop()
        if self._done is None or self._done.done():
            finished = loop.create_future()
            # Not in an executor: a process waits for the threads of its executors when it exits.
            threading.Thread(target=self._work, args=(loop, finished), name="file reading", daemon=True).start()
            self._done, self._began_s = finished, loop.time()
        await asyncio.wait({self._done}, timeout=max(0.0, self._began_s + PATIENCE_S - loop.time()))

    def _work(self, loop: asyncio.AbstractEventLoop, finished: asyncio.Future[None]) -> None:
        try:
            self._read()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finished.set_result, None)


class FollowedFiles(Generic[T]):
    """A value read from files, such as a TLS context, and read again in a thread when one of the files changes.

    Args:
        read: returns the value and its files. An exception at construction is raised; later the last good value stays.
        changed: called with every new value.
        failed: called with every later exception of ``read``.
    """

    def __init__(
        self,
        read: Callable[[], tuple[T, Sequence[Path]]],
        *,
        changed: Callable[[T], object],
        failed: Callable[[Exception], object],
    ) -> None:
        self._read = read
        self._changed = changed
        self._failed = failed
        self._unusable = False
        self._reading = threading.Lock()
        self._look = SharedReading(self._read_changes)
        self._looked_s = time.monotonic()
        self.value, self._files = read()
        """The last usable value; ``get`` looks for a newer one."""
        self._stamp = _stamp(self._files)

    async def get(self) -> T:
        """Return the newest usable value; the files are checked at most every ``LOOK_EVERY_S``."""
        if self._files and time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            await self._look.run()
        return self.value

    def read_again(self) -> bool:
        """Read the files now; return True if they are usable. May block as long as a file system does."""
        with self._reading:
            return self._read_now()

    def _read_changes(self) -> None:
        with self._reading:
            # A version that failed may depend on files that are unknown here: try it again even without a change.
            if self._unusable or _stamp(self._files) != self._stamp:
                self._read_now()
        self._looked_s = time.monotonic()

    def _read_now(self) -> bool:
        stamp = _stamp(self._files)  # before reading, so that a concurrent change is detected later
        try:
            value, files = self._read()
        except Exception as error:  # noqa: BLE001  serve the last good version after any error
            self._unusable, self._stamp = True, stamp
            self._failed(error)
            return False
        self._stamp = stamp if files == self._files else _stamp(files)
        self.value, self._files, self._unusable = value, files, False
        self._changed(value)
        return True


class ReloadThread:
    """Daemon thread that calls ``reload`` on request, so that reading the settings does not block an event loop.

    Requests during a reload cause one more. ``reload`` must not raise.
    """

    def __init__(self, reload: Callable[[], object]) -> None:
        self._reload = reload
        self._requested = threading.Event()
        threading.Thread(target=self._run, name="reload", daemon=True).start()

    def request(self) -> None:
        """Reload soon."""
        self._requested.set()

    def _run(self) -> None:
        while True:
            self._requested.wait()
            self._requested.clear()
            self._reload()


def _stamp(files: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    """Return inode, size and modification time of each file; None for a missing one."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)  # noqa: PTH116  allocates fewer objects than pathlib
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return stamps
