"""Profiler windows: the same steps on every rank, because all ranks count the same steps under the same schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.handover import EntryKind, Window
from rankscope.profiler.kineto import KinetoSession, KinetoUnavailable
from rankscope.profiler.scratch import remove_trace, room_for_trace, trace_folder

_NO_ROOM: Final = "too little local memory for a trace"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows of ``steps`` steps, the first at step ``first``, then every ``every`` steps (0: only the first)."""

    first: int
    every: int
    steps: int

    def covers(self, step: int) -> bool:
        """Whether ``step`` is profiled."""
        into = step - self.first
        if into < 0 or self.steps <= 0:
            return False
        return (into % self.every if self.every else into) < self.steps


class Windows:
    """Starts and stops windows at step boundaries; what goes wrong costs the window, nothing else."""

    def __init__(self, schedule: Schedule, scratch: Path, put: Callable[[int, bytes], bool]) -> None:
        self._schedule = schedule
        self._scratch = scratch
        self._put = put
        self._session: KinetoSession | None = None
        self._first = 0
        self._skip_until = -1
        self._warm = schedule.steps <= 0

    @property
    def active(self) -> bool:
        """Whether the step now running is profiled."""
        return self._session is not None

    def boundary(self, next_step: int) -> None:
        """Between two steps, on the training thread."""
        wanted = self._schedule.covers(next_step)
        if self._session is not None:
            if wanted:
                self._session.begin_step(next_step)
                return
            self._finish(next_step - 1)
        elif wanted and next_step > self._skip_until:
            self._start(next_step)
        elif not self._warm:
            self._warm_up()

    def _start(self, step: int) -> None:
        self._warm = True
        self._first = step
        try:
            if room_for_trace(self._scratch) is None:
                raise KinetoUnavailable(_NO_ROOM)  # noqa: TRY301  # all reasons end below
            session = KinetoSession()
            session.start()
        except (KinetoUnavailable, OSError) as error:
            self._miss(str(error))
            return
        self._session = session
        session.begin_step(step)

    def _finish(self, last: int) -> None:
        session, self._session = self._session, None
        assert session is not None
        path = None
        try:
            session.stop()
            # Made only now: a window that is dropped before its end leaves nothing to clear away.
            folder = trace_folder(self._scratch)
            if folder is None:
                raise KinetoUnavailable(_NO_ROOM)  # noqa: TRY301  # all reasons end below
            path = folder / f"window-{self._first:09d}.json"
            session.export(path)
        except (KinetoUnavailable, RuntimeError, OSError) as error:
            taken = False
            self._put(EntryKind.MISSED_WINDOW, str(error).encode()[:500])
        else:
            taken = self._put(EntryKind.WINDOW, msgspec.json.encode(Window(str(path), self._first, last)))
        if not taken and path is not None:
            remove_trace(path, self._scratch)

    def _miss(self, reason: str) -> None:
        # The rest of this window would be steps the other ranks have and this one has not: skip it whole.
        step = self._first
        while self._schedule.covers(step):
            step += 1
            if self._schedule.every and self._schedule.every <= self._schedule.steps:
                break
        self._skip_until = step - 1
        self._put(EntryKind.MISSED_WINDOW, reason.encode()[:500])

    def _warm_up(self) -> None:
        # The first start initialises CUPTI, which takes long: have that before it falls on a measured step, on all ranks alike.
        self._warm = True
        try:
            session = KinetoSession()
            session.start()
            session.stop()
        except (KinetoUnavailable, RuntimeError):
            return

    def give_way(self) -> None:
        """Somebody starts a profiler of their own: theirs goes first, our window is dropped."""
        if self._session is None:
            return
        session, self._session = self._session, None
        session.stop()
        self._miss("another profiler was started")

    def close(self) -> None:
        """Stop without a result."""
        if self._session is not None:
            session, self._session = self._session, None
            session.stop()
