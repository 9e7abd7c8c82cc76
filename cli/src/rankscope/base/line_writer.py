"""Lines of text to a pipe or file, written by a thread: a full pipe drops lines instead of blocking the process."""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

MAX_LINES: Final = 2000
"""Maximum number of queued lines."""
FLUSH_S: Final = 0.5


class LineWriter:
    """Queue of lines, which a thread writes to the descriptor ``fd``.

    If the queue is full, lines are dropped and counted; once the pipe is read again, the line ``dropped(count)`` reports the
    number. Create it after the last fork, because the thread starts at once.
    """

    def __init__(self, fd: int, *, dropped: Callable[[int], str], max_lines: int = MAX_LINES) -> None:
        self._fd = fd
        self._dropped = dropped
        self._lines: queue.Queue[str] = queue.Queue(max_lines)
        # Each counter is written by one thread only and needs no lock.
        self._refused = 0
        self._unwritten = 0
        self._reported = 0
        threading.Thread(target=self._write_all, name="lines", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue a line; never blocks."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._refused += 1

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait up to ``timeout_s`` for the queue to be written."""
        all_written = self._lines.all_tasks_done
        with all_written:
            all_written.wait_for(lambda: not self._lines.unfinished_tasks, timeout_s)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            try:
                self._write(line)
                if self._lines.empty():
                    self._report_dropped()
            except OSError:
                self._unwritten += 1  # a closed pipe or a full disk; the next line is tried again
            finally:
                self._lines.task_done()

    def _report_dropped(self) -> None:
        count = self._refused + self._unwritten
        if count > self._reported:
            self._write(self._dropped(count - self._reported))
            self._reported = count

    def _write(self, line: str) -> None:
        remaining = memoryview(f"{line}\n".encode(errors="backslashreplace"))
        while remaining:
            try:
                remaining = remaining[os.write(self._fd, remaining) :]
            except BlockingIOError:  # another process that shares the pipe has set O_NONBLOCK
                select.select([], [self._fd], [])


def discard_output() -> None:
    """Discard what ``sys.stdout`` could not write: flushing it when the process exits would fail again."""
    with suppress(OSError, ValueError):  # not a file, or closed: nothing is buffered
        number = sys.stdout.fileno()
        copy_fd = os.dup(number)
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            sys.stdout.flush()
        finally:
            os.dup2(copy_fd, number)
            os.close(copy_fd)
