"""Calls with a deadline: of a directory service, a network file system, a stuck process, or a scheduler that lists its holds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from rankscope.base.problems import ProblemLog
from rankscope.exporter.jobs.party import Hold

T = TypeVar("T")


@dataclass(slots=True)
class _Answer:
    value: Any = None
    error: BaseException | None = None


class BusyError(TimeoutError):
    """The call was not made, because too many earlier calls have not returned yet."""


class Deadline:
    """Runner of function calls, each in a thread of its own and bounded by ``seconds``.

    A call that misses its deadline keeps running in its thread. While ``most_stuck`` such calls are running, no further call is
    made. Not thread-safe.
    """

    def __init__(self, seconds: float, *, most_stuck: int = 1) -> None:
        self._seconds = seconds
        self._most_stuck = most_stuck
        self._stuck: list[threading.Thread] = []

    def ask(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``, or raise its exception.

        Raises:
            TimeoutError: the call did not return in time.
            BusyError: the call was not made.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= self._most_stuck:
            raise BusyError("an earlier call has not returned yet")
        answer = _Answer()
        # Daemon thread: a call stuck in the kernel must not keep the process from exiting.
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
    except BaseException as error:  # noqa: BLE001  raised again by the caller
        answer.error = error


logger = logging.getLogger(__name__)

KEEP_S: Final = 30.0
"""Retention of the last answer of a failing source: longer than a restart of the kubelet, so that labels do not flap."""

_DEADLINE_S: Final = 2.0


class HoldSource:
    """Scheduler whose allocations ``call`` lists, with a deadline of two seconds per call.

    ``ok``: the last call succeeded. ``known``: the last answer is still valid. Both are None on a node without this scheduler.
    """

    def __init__(self, name: str, call: Callable[[], tuple[Hold, ...] | None]) -> None:
        self.name = name
        self.ok: bool | None = None
        self.known: bool | None = None
        self._call = call
        self._deadline = Deadline(_DEADLINE_S)
        self._last: tuple[Hold, ...] | None = None
        self._last_s = float("-inf")
        self._problems = ProblemLog(
            partial(logger.warning, "jobs: %s: %s", name), partial(logger.info, "jobs: %s works again", name)
        )

    def read(self, now_s: float) -> tuple[Hold, ...] | None:
        """Return all allocations, at most ``KEEP_S`` old; None if unknown. ``now_s`` is monotonic time."""
        recent = self._last is not None and now_s - self._last_s <= KEEP_S
        try:
            holds = self._deadline.ask(self._call)
        except Exception as error:  # noqa: BLE001  a failing source must not affect the others
            self.ok, self.known = False, recent
            self._problems.report(str(error) or type(error).__name__)
            return self._last if recent else None
        if holds is None and recent:  # a restarting kubelet removes its socket
            self.ok, self.known = False, True
            return self._last
        self._problems.report(None)
        self._last, self._last_s = holds, now_s
        self.ok = self.known = None if holds is None else True
        return holds
