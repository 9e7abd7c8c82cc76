"""Profiler windows: the same steps on every rank, because all ranks count the same steps and hear of the same windows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.handover import EntryKind, Window
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank.clock import now
from rankscope.profiler.rank.kineto import KinetoSession, KinetoUnavailable
from rankscope.profiler.ring import Announcement, RingWriter
from rankscope.profiler.scratch import remove_trace, room_for_trace, trace_folder

_NO_ROOM: Final = "too little local memory for a trace"
_TOO_LATE: Final = "it was announced when its first step had begun"
_OVERLAPS: Final = "another window was running"
_NEVER: Final = 2**63


class Windows:
    """Starts and stops windows at step boundaries; what goes wrong costs the window, nothing else.

    The helper hears through ``ring`` of every window that was due, and what windows have cost.
    """

    def __init__(self, schedule: Schedule, scratch: Path, ring: RingWriter) -> None:
        self._schedule = schedule
        self._scratch = scratch
        self._ring = ring
        self.session: KinetoSession | None = None
        """The profiler, while the step now running is profiled."""
        self._running = Announcement(0, 0, 0)
        self._announced: list[Announcement] = []
        """Those to come, by their first step."""
        self._warm = schedule.steps <= 0
        self._cost_ns = self._said_ns = 0
        self._recorded = 0
        self.wake = 0
        """The next step before which ``boundary`` has to be called; where the ring has news, before any."""

    @property
    def active(self) -> bool:
        """Whether the step now running is profiled."""
        return self.session is not None

    def boundary(self, next_step: int) -> None:
        """Between two steps, on the training thread."""
        self._pass(next_step)
        if self.session is not None or self._cost_ns != self._said_ns or not self._warm:
            self.wake = next_step + 1
        else:
            due = self._schedule.after(next_step)
            self.wake = _NEVER if due is None else due
            if self._announced:
                self.wake = min(self.wake, self._announced[0].first)

    def _pass(self, next_step: int) -> None:
        if self._cost_ns != self._said_ns:
            # A step later than it arose: then it is also in the recorder's total, of which it is a part.
            self._say_cost()
        if (news := self._ring.news()) is not None:
            self._hear(news, next_step)
        due = self._due(next_step)
        if self.session is None and due is None and self._warm:
            return
        began = now()
        if self.session is not None and next_step < self._running.first + self._running.steps:
            self.session.begin_step(next_step)
            if due is not None:
                self._miss(_OVERLAPS)
        else:
            if self.session is not None:
                self._finish(next_step - 1)
            if due is not None:
                self._start(due)
            elif not self._warm:
                self._warm_up()
        self._cost_ns += now() - began

    def _hear(self, news: Announcement, next_step: int) -> None:
        if news.first < next_step:
            # Its rest would be steps that the other ranks have and this one has not: leave it out whole.
            self._miss(_TOO_LATE)
        else:
            self._announced.append(news)
            self._announced.sort(key=lambda window: window.first)

    def _due(self, step: int) -> Announcement | None:
        due = None
        while self._announced and self._announced[0].first <= step:
            due = self._announced.pop(0)
        if due is not None and due.first == step:
            return due
        steps = self._schedule.starting(step)
        return Announcement(0, step, steps) if steps else None

    def _start(self, window: Announcement) -> None:
        self._warm = True
        try:
            if room_for_trace(self._scratch) is None:
                raise KinetoUnavailable(_NO_ROOM)  # noqa: TRY301  # all reasons end below
            session = KinetoSession()
            session.start()
        except (KinetoUnavailable, OSError) as error:
            self._miss(str(error))
            return
        self.session, self._running = session, window
        session.begin_step(window.first)

    def _finish(self, last: int) -> None:
        session, self.session = self.session, None
        assert session is not None
        window, path = self._running, None
        try:
            session.stop()
            # Made only now: a window that is dropped before its end leaves nothing to clear away.
            folder = trace_folder(self._scratch)
            if folder is None:
                raise KinetoUnavailable(_NO_ROOM)  # noqa: TRY301  # all reasons end below
            path = folder / f"window-{window.first:09d}.json"
            session.export(path)
        except (KinetoUnavailable, RuntimeError, OSError) as error:
            taken = False
            self._miss(str(error))
        else:
            entry = Window(str(path), window.first, last, keep_trace=window.keep_trace)
            taken = self._ring.put(EntryKind.WINDOW, msgspec.json.encode(entry))
        self._recorded += taken
        if not taken and path is not None:
            remove_trace(path, self._scratch)

    def _miss(self, reason: str) -> None:
        self._ring.put(EntryKind.MISSED_WINDOW, reason.encode()[:500])

    def _warm_up(self) -> None:
        # The first start initialises CUPTI, which takes long: have that before it falls on a measured step, on all ranks alike.
        self._warm = True
        try:
            session = KinetoSession()
            session.start()
            session.stop()
        except (KinetoUnavailable, RuntimeError):
            return

    def _say_cost(self) -> None:
        self._said_ns = self._cost_ns
        self._ring.set_window_cost(self._cost_ns, self._recorded)

    def give_way(self) -> None:
        """Somebody starts a profiler of their own: theirs goes first, our window is dropped."""
        if self.session is None:
            return
        began = now()
        session, self.session = self.session, None
        session.stop()
        self._miss("another profiler was started")
        self._cost_ns += now() - began

    def close(self) -> None:
        """Stop without a result."""
        self._say_cost()
        if self.session is not None:
            session, self.session = self.session, None
            session.stop()
