"""Calls with a deadline: of a directory service, a network file system, a stuck process, or a scheduler that lists its holds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rankscope.exporter.jobs.party import Hold

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


logger = logging.getLogger(__name__)

KEEP_S: Final = 30.0
"""A kubelet restarts within this time. Labels that came and went would be new series each time."""

_DEADLINE_S: Final = 2.0


class HoldSource:
    """Asks ``call`` and waits two seconds at most.

    ``ok``: it answered; None where there is nothing to ask. ``known``: what it said last may still be believed.
    """

    def __init__(self, name: str, call: Callable[[], tuple[Hold, ...] | None]) -> None:
        self.name = name
        self.ok: bool | None = None
        self.known: bool | None = None
        self._call = call
        self._deadline = Deadline(_DEADLINE_S)
        self._last: tuple[Hold, ...] | None = None
        self._last_s = float("-inf")
        self._logged: str | None = None

    def read(self, now_s: float) -> tuple[Hold, ...] | None:
        """All that hold something, at most ``KEEP_S`` old; None where that is not known. ``now_s`` is monotonic."""
        recent = self._last is not None and now_s - self._last_s <= KEEP_S
        try:
            holds = self._deadline.ask(self._call)
        except Exception as error:  # noqa: BLE001  whatever goes wrong with one source costs that source only
            self.ok, self.known = False, recent
            self._log(str(error) or type(error).__name__)
            return self._last if recent else None
        if holds is None and recent:  # as a kubelet that restarts takes its socket away
            self.ok, self.known = False, True
            return self._last
        self._log(None)
        self._last, self._last_s = holds, now_s
        self.ok = self.known = None if holds is None else True
        return holds

    def _log(self, problem: str | None) -> None:
        if problem == self._logged:
            return
        if problem is None:
            logger.info("jobs: %s works again", self.name)
        else:
            logger.warning("jobs: %s: %s", self.name, problem)
        self._logged = problem
