"""Guards that keep every error of the recorder away from training, and lines for the user in place of errors."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from threading import get_ident
from time import perf_counter_ns as now
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")


class GuardedRecorder(Protocol):
    """Class with guarded methods.

    ``thread``: the one thread whose calls it accepts (0: it is off). ``listening``: the same, but 0 during a guarded call.
    """

    thread: int
    listening: int

    def failed(self, error: Exception) -> None:
        """Switch off for good, or raise ``error`` if it belongs to training: see ``raised_by_a_signal_handler``."""


_G = TypeVar("_G", bound=GuardedRecorder)


def raised_by_a_signal_handler(error: BaseException) -> bool:
    """Return whether ``error`` comes from a signal handler of the script, which may run between any two lines of Python."""
    codes = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def print_line(text: str) -> None:
    """Write a line for the user to stderr. Never raises."""
    with suppress(Exception):
        sys.stderr.write(f"rankscope: {text}\n")


def print_not_recorded(reason: str) -> None:
    """Tell the user why this process is not recorded. Never raises."""
    print_line(f"not recorded: {reason}; training goes on")


def never_free(holder: object) -> None:
    """Keep an object and all that it refers to until the process ends, and beyond the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))


def _code(handler: object) -> object:
    call = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004  # the method itself is needed
    return getattr(call, "__code__", None)


def guarded(
    default: _R,
) -> Callable[[Callable[Concatenate[_G, int, _P], _R]], Callable[Concatenate[_G, _P], _R]]:
    """Make a method do nothing on other threads or when its object is off, and raise no recorder error.

    The method receives the time of its call, in nanoseconds of ``perf_counter_ns``, before its other arguments (positional only,
    because they are cheaper), so no event reads the clock twice. The call returns ``default`` in three cases: it does nothing,
    it comes from a signal handler during another guarded call, or it failed, which switches its object off.
    """

    def decorate(method: Callable[Concatenate[_G, int, _P], _R]) -> Callable[Concatenate[_G, _P], _R]:
        call = cast("Callable[..., _R]", method)

        @wraps(method)
        def safe(self: _G, *args: object) -> _R:
            if get_ident() != self.listening:
                return default
            at = now()
            self.listening = 0
            try:
                return call(self, at, *args)
            except Exception as error:  # noqa: BLE001  # no error may stop training
                self.failed(error)
                return default
            finally:
                self.listening = self.thread

        return cast("Callable[Concatenate[_G, _P], _R]", safe)

    return decorate
