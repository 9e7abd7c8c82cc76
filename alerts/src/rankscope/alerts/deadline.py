"""A time by which an HTTP request is over, however many reads it takes."""

from __future__ import annotations

import socket
import threading
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
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()

    def trace(self, _event: str, info: Mapping[str, Any]) -> None:
        """What httpx is doing: look for a connection, plain or inside TLS."""
        ask = getattr(info.get("return_value"), "get_extra_info", None)
        connection = ask("socket") if ask else None
        if isinstance(connection, socket.socket):
            with self._lock:
                self._connection = connection
                if self.passed:
                    _shut(connection)

    def _cut(self) -> None:
        with self._lock:
            self.passed = True
            if self._connection is not None:
                _shut(self._connection)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already
        # The plain one also for TLS, which would first take the connection apart under the thread that reads from it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
