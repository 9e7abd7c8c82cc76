"""Lines for whoever looks on, written by a thread of their own: a pipe that nobody empties holds up no delivery."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

MAX_WAITING: Final = 10_000
"""Lines; more are lost, and how many is said."""
CLOSE_S: Final = 2.0


class Shown:
    """Takes lines from any thread and never waits; ``write`` takes them one after the other."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="shown", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Show a line, some time."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if self._lost:
                lost, self._lost = self._lost, 0
                self._write(f"… {lost} lines were lost: they came faster than they could be shown")
