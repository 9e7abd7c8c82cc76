"""The rule above all: nothing of the recorder's own may reach training."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from rankscope.profiler.rank.clock import now

_P = ParamSpec("_P")
_R = TypeVar("_R")

UNSEEN_NS: Final = 600
"""What a guarded call costs beyond what it can see of itself: being called, by a wrapper that is called instead of torch's own
function. An estimate, not a measurement: it depends on how cold the caches are, and in the middle of training is more than in
any loop that could measure it here. Booked with every call."""


class Guarded(Protocol):
    """What has guarded methods.

    The one thread it listens to (0: none, it is off), the same while it is not in the middle of something (else 0), and its own
    cost in nanoseconds.
    """

    thread: int
    listening: int
    cost_ns: int

    def failed(self, error: Exception) -> None:
        """Switch off for good, or raise ``error`` where it is training's: see ``raised_by_a_signal_handler``."""


_G = TypeVar("_G", bound=Guarded)


def raised_by_a_signal_handler(error: BaseException) -> bool:
    """Whether ``error`` came out of a signal handler of the script's, which may run between any two lines of Python."""
    codes = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> object:
    call = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004  # not whether, but what
    return getattr(call, "__code__", None)


def guarded(
    default: _R,
) -> Callable[[Callable[Concatenate[_G, int, _P], _R]], Callable[Concatenate[_G, _P], _R]]:
    """A method that does nothing on other threads or when its object is off, books its own time, and never raises.

    The method is handed the moment at which it was called, in nanoseconds of ``clock.now``, before its other arguments
    (positional ones only, they are cheaper): no event needs a second reading. The call answers ``default`` when it does nothing,
    when it comes from a signal handler in the middle of another, and when it failed and thereby switched its object off.
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
                self.cost_ns += now() - at + UNSEEN_NS

        return cast("Callable[Concatenate[_G, _P], _R]", safe)

    return decorate
