"""A time by which an HTTP request is over, however many reads it takes."""

from __future__ import annotations

import heapq
import itertools
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self


class Deadline:
    """Cuts the connection of a request when its time is up.

    The time-outs of httpx begin anew with every byte, so a receiver that sends one now and then would hold us up for hours.
    Used as httpx's ``trace``, it learns of each connection that is made.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._seconds = seconds
        self._over = False
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        _WATCHDOG.watch(self, time.monotonic() + self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._over = True
            self._connection = None

    def trace(self, _event: str, info: Mapping[str, Any]) -> None:
        """What httpx is doing: look for a connection, plain or inside TLS."""
        ask = getattr(info.get("return_value"), "get_extra_info", None)
        connection = ask("socket") if ask else None
        if isinstance(connection, socket.socket):
            with self._lock:
                self._connection = connection
                if self.passed:
                    _shut(connection)

    def cut(self) -> None:
        """Its time is up."""
        with self._lock:
            if self._over:
                return
            self.passed = True
            if self._connection is not None:
                _shut(self._connection)


class _Watchdog:
    """One thread for all deadlines: a timer for each would cost more than the request that it watches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def watch(self, deadline: Deadline, when_s: float) -> None:
        """Cut it at that time of ``time.monotonic``, unless it is over."""
        with self._changed:
            heapq.heappush(self._due, (when_s, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():  # the latter in a process that was forked
                self._thread = threading.Thread(target=self._run, name="rankscope-deadlines", daemon=True)
                self._thread.start()
            elif self._due[0][2] is deadline:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                deadline = heapq.heappop(self._due)[2]
            deadline.cut()


_WATCHDOG = _Watchdog()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already
        # The plain one also for TLS, which would first take the connection apart under the thread that reads from it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
