"""Signals of a command with one main loop: SIGTERM and SIGINT end it, SIGHUP has it read its configuration again."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Final, Self

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class StoppedError(BaseException):
    """SIGTERM or SIGINT arrived. Not an ``Exception``, so that no handler in between catches it."""


class SignalHandlers:
    """Handlers of SIGTERM, SIGINT and SIGHUP, as a context manager; the previous handlers return at its end.

    A signal sets a flag and ends ``wait``. Only within ``interruptible`` does it raise an exception: anywhere else that could
    cut a change in two, such as a transaction.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._reloading = False
        self._interruptible = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (*_ENDING, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was returned
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, seconds: float) -> None:
        """Wait until the time is over or a signal arrives."""
        if select.select([self._reader], [], [], max(0.0, seconds))[0]:
            with suppress(BlockingIOError):
                os.read(self._reader, 1024)

    def take_reload(self) -> bool:
        """Return whether SIGHUP has arrived since the last call."""
        reloading, self._reloading = self._reloading, False
        return reloading

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise ``StoppedError`` when SIGTERM or SIGINT arrives in this block, or has arrived before. It must change no state."""
        self._interruptible = True
        try:
            if self.stopping:
                raise StoppedError
            yield
        finally:
            self._interruptible = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._writer, b".")
        if number == signal.SIGHUP:
            self._reloading = True
            return
        self.stopping = True
        if self._interruptible:
            self._interruptible = False
            raise StoppedError
