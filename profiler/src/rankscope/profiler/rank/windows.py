"""Profiler windows: the same steps on every rank, because all ranks count the same steps and receive the same windows."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns as now
from typing import Final

import msgspec

from rankscope.profiler.handover import EntryKind, Window
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank.kineto import KinetoSession, KinetoUnavailable
from rankscope.profiler.ring import Announcement, RingWriter
from rankscope.profiler.scratch import remove_trace, room_for_trace, trace_folder

_NO_ROOM: Final = "too little local memory for a trace"
_TOO_LATE: Final = "it was announced when its first step had begun"
_OVERLAPS: Final = "another window was running"
_NEVER: Final = 2**63


class Windows:
    """Controller that starts and stops windows at step boundaries. An error only loses the window.

    Every due window, and the cost of windows, is reported to the helper through ``ring``. ``ranks_here``: number of ranks on this
    host.
    """

    def __init__(self, schedule: Schedule, scratch: Path, ring: RingWriter, *, ranks_here: int = 1) -> None:
        self._schedule = schedule
        self._scratch = scratch
        self._ranks_here = ranks_here
        self._ring = ring
        self.session: KinetoSession | None = None
        """Profiler session, while the current step is profiled."""
        self._running = Announcement(0, 0, 0)
        self._announced: list[Announcement] = []
        """Announced windows that have not begun, ordered by their first step."""
        self._warm = schedule.steps <= 0
        self._cost_ns = self._said_ns = 0
        self._recorded = 0
        self.wake = 0
        """Next step before which ``boundary`` must be called; it must also be called whenever the ring has news."""

    @property
    def active(self) -> bool:
        """True while the current step is profiled."""
        return self.session is not None

    def boundary(self, next_step: int) -> None:
        """Start, continue or stop a window between two steps, on the training thread."""
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
            # Publish the cost one step late: by then the recorder's total, which includes it, contains it too.
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
            # Joining late would profile fewer steps than on other ranks, so skip the whole window.
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
            if room_for_trace(self._scratch, self._ranks_here) is None:
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
            # Created only now, so that a window dropped before its end leaves nothing to remove.
            folder = trace_folder(self._scratch, self._ranks_here)
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
        # The first start initialises CUPTI, which is slow: do it on all ranks alike, before a measured step would include it.
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
        """Drop the current window, because the script starts a profiler of its own, which has priority."""
        if self.session is None:
            return
        began = now()
        session, self.session = self.session, None
        session.stop()
        self._miss("another profiler was started")
        self._cost_ns += now() - began

    def close(self) -> None:
        """Publish the cost of windows, and stop a running one without a result."""
        self._say_cost()
        if self.session is not None:
            session, self.session = self.session, None
            session.stop()
