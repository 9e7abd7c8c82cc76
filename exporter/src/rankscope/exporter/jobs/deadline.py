"""Asking what may never answer: a directory service, a network file system, a process stuck in the kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Answer:
    value: Any = None
    error: BaseException | None = None


class BusyError(TimeoutError):
    """Nothing was called: too many earlier calls have not come back yet."""


class Deadline:
    """Calls functions in threads of their own and waits ``seconds`` for each.

    A call that does not answer is left behind. As long as ``most_stuck`` of them have not come back, nothing more is called.
    One thread asks.
    """

    def __init__(self, seconds: float, *, most_stuck: int = 1) -> None:
        self._seconds = seconds
        self._most_stuck = most_stuck
        self._stuck: list[threading.Thread] = []

    def ask(self, call: Callable[[], T]) -> T:
        """Its result or exception; raises ``TimeoutError`` when there is none in time, ``BusyError`` when it was not called."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= self._most_stuck:
            raise BusyError("an earlier call has not come back yet")
        answer = _Answer()
        # A daemon: a thread stuck in the kernel must not keep the process from ending.
        thread = threading.Thread(target=_run, args=(call, answer), name="jobs-deadline", daemon=True)
        thread.start()
        thread.join(self._seconds)
        if thread.is_alive():
            self._stuck.append(thread)
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value


def _run(call: Callable[[], Any], answer: _Answer) -> None:
    try:
        answer.value = call()
    except BaseException as error:  # noqa: BLE001  it is raised by who asked
        answer.error = error
