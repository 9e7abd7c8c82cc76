"""Calls with a deadline: of a directory service, a network file system, a stuck process, a scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _CallOutcome:
    value: Any = None
    error: BaseException | None = None


class TooManyCallsError(TimeoutError):
    """The call was not made, because too many earlier calls have not returned yet, or there is no thread for it."""


class BoundedCalls:
    """Runner of function calls, each in a thread of its own and bounded by ``seconds``.

    A call that misses its deadline keeps running in its thread. While ``max_stuck`` such calls are running, no further call is
    made. Not thread-safe.
    """

    def __init__(self, seconds: float, *, max_stuck: int = 1) -> None:
        self._seconds = seconds
        self._max_stuck = max_stuck
        self._stuck: list[threading.Thread] = []

    def call(self, function: Callable[[], T]) -> T:
        """Return the result of ``function``, or raise its exception.

        Raises:
            TimeoutError: the call did not return in time.
            TooManyCallsError: the call was not made.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= self._max_stuck:
            raise TooManyCallsError("an earlier call has not returned yet")
        outcome = _CallOutcome()
        # Daemon thread: a call stuck in the kernel must not keep the process from exiting.
        thread = threading.Thread(target=_run, args=(function, outcome), name="jobs-deadline", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the limit of threads
            raise TooManyCallsError(str(error)) from error
        thread.join(self._seconds)
        if thread.is_alive():
            self._stuck.append(thread)
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value


def _run(function: Callable[[], Any], outcome: _CallOutcome) -> None:
    try:
        outcome.value = function()
    except BaseException as error:  # noqa: BLE001  raised again by the caller
        outcome.error = error
