"""Non-blocking log output: a full pipe behind stderr drops lines instead of blocking the exporter."""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
from typing import Final

_MOST_LINES: Final = 2000
_FLUSH_S: Final = 0.5


class NeverWaitingHandler(logging.Handler):
    """Log handler that queues each line for a thread, which writes it to the descriptor ``fd``.

    Create it after the last fork, because the thread starts at once. If the queue is full, lines are dropped and counted; once
    the pipe is read again, a warning reports the number.
    """

    def __init__(self, fd: int, *, most_lines: int = _MOST_LINES) -> None:
        super().__init__()
        self._fd = fd
        self._lines: queue.Queue[str] = queue.Queue(most_lines)
        # Each counter is written by one thread only and needs no lock.
        self._refused = 0
        self._unwritten = 0
        self._reported = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line; never blocks and never raises."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._refused += 1
        except Exception:  # noqa: BLE001  as in logging's own handlers
            self.handleError(record)

    def flush(self) -> None:
        """Wait up to half a second for the queue to be written."""
        done = self._lines.all_tasks_done
        with done:
            done.wait_for(lambda: not self._lines.unfinished_tasks, _FLUSH_S)

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
        dropped = self._refused + self._unwritten
        if dropped > self._reported:
            text = "log lines were dropped, because the pipe was full: %d"
            record = logging.LogRecord("rankscope.exporter.logs", logging.WARNING, "", 0, text, (dropped - self._reported,), None)
            self._write(self.format(record))
            self._reported = dropped

    def _write(self, line: str) -> None:
        rest = memoryview(f"{line}\n".encode(errors="backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process that shares the pipe has set O_NONBLOCK
                select.select([], [self._fd], [])
