"""The rule above all: nothing of the recorder's own may reach training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from rankscope.profiler.clock import now

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Guarded(Protocol):
    """What has guarded methods: a switch, the one thread it listens to, and its own cost in nanoseconds."""

    off: bool
    thread: int
    cost_ns: int

    def disable(self, reason: str) -> None:
        """Switch off for good. Must not raise."""


_G = TypeVar("_G", bound=Guarded)


def guarded(default: _R) -> Callable[[Callable[Concatenate[_G, _P], _R]], Callable[Concatenate[_G, _P], _R]]:
    """A method that does nothing on other threads or when its object is off, books its own time, and never raises.

    It answers ``default`` when it does nothing, and when it failed and thereby switched its object off.
    """

    def decorate(method: Callable[Concatenate[_G, _P], _R]) -> Callable[Concatenate[_G, _P], _R]:
        @wraps(method)
        def safe(self: _G, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            if self.off or threading.get_ident() != self.thread:
                return default
            began = now()
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  # whatever it is, training goes on
                self.disable(f"{type(error).__name__}: {error}")
                return default
            finally:
                self.cost_ns += now() - began

        return cast("Callable[Concatenate[_G, _P], _R]", safe)

    return decorate
