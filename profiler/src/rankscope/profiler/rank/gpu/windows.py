"""Profiler windows: the same steps on every rank, because all ranks count the same steps and receive the same windows.

On a device the step before a window is its warm-up, and the device has done all its work where a window begins and where it ends.
So a window has the work of its own steps, all of it, on every rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns as now
from typing import Final

import msgspec

from rankscope.profiler.handover import MessageKind, ProfiledWindow
from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank.gpu import graph_capture
from rankscope.profiler.rank.gpu.kineto import KinetoSession, KinetoUnavailable, detaches, device_type
from rankscope.profiler.rank.guard import never_free
from rankscope.profiler.ring import Announcement, RingWriter
from rankscope.profiler.scratch import remove_trace, room_for_trace, trace_folder

_NO_ROOM: Final = "too little local memory for a trace"
_TOO_LATE: Final = "it was announced when its first step had begun"
_NO_WARM_UP: Final = "it was announced when its warm-up step had begun"
_OVERLAPS: Final = "another window was running"
_THREAD_ENDED: Final = "the training thread has ended"
_OTHER_THREAD: Final = "the recording has ended on another thread"
_CAPTURE: Final = "a CUDA graph was captured where it begins or ends"
_DETACH_STEPS: Final = 10
"""Steps between a window and the next one where CUPTI is detached in between: an attempt to attach meanwhile crashes or hangs
some versions of Kineto, or gives a trace without kernels."""
_DETACHING: Final = f"CUPTI is detached after the window before it (TEARDOWN_CUPTI=1), which is given {_DETACH_STEPS} steps"
_NEVER: Final = 2**63


class _ThreadEnd:
    """Object that a thread keeps for itself: ``ended`` is called on that thread at its end."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        with suppress(Exception):
            self._ended()


class WindowController:
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
        self.prepared: KinetoSession | None = None
        """Profiler session in the step before a window on a device: its warm-up."""
        self._spoiled = False
        """True if the running window cannot be recorded any more, but the profiler could not be stopped yet."""
        self._running = Announcement(0, 0, 0)
        self._announced: list[Announcement] = []
        """Announced windows that have not begun, ordered by their first step."""
        self._warm = schedule.steps <= 0
        self._attach_from = 0
        """First step before which the profiler may attach to the device again."""
        self._of_thread = threading.local()
        self._thread = 0
        """Thread that has started the last profiler."""
        self._has_ended = False
        """True from the end of a thread in a window until that is reported: what was written since its last step is dropped."""
        self._cost_ns = self._published_ns = self._idle_ns = 0
        self._recorded = 0
        self.wake = 0
        """Next step before which ``boundary`` must be called; it must also be called whenever the ring has a new announcement."""

    @property
    def active(self) -> bool:
        """True while the current step is profiled."""
        return self.session is not None

    def boundary(self, next_step: int) -> None:
        """Start, continue or stop a window between two steps, on the training thread."""
        self._pass(next_step)
        if self.is_profiling or self._cost_ns != self._published_ns:
            self.wake = next_step + 1
        else:
            # A step early, for the warm-up.
            first = self._schedule.after(next_step)
            firsts = [window.first for window in self._announced[:1]] + ([] if first is None else [first])
            self.wake = max(next_step + 1, min(firsts) - 1) if firsts else _NEVER

    def _pass(self, next_step: int) -> None:
        self._report_end()
        if self._cost_ns != self._published_ns:
            # Publish the cost one step late: by then the recorder's total, which includes it, contains it too.
            self._publish_cost()
        if (announcement := self._ring.announcement()) is not None:
            self._receive(announcement, next_step)
        due, starts_next = self._due(next_step), self._starts_with(next_step + 1)
        if not self.is_profiling and due is None and not starts_next:
            return
        began, self._idle_ns = now(), 0
        if graph_capture.going_on():
            # Neither starting nor stopping a profiler is possible now without spoiling the script's graph.
            self._spoiled = self.session is not None
            if due is not None:
                self._miss(_CAPTURE)
        elif self.session is not None and not self._spoiled and next_step < self._running.first + self._running.steps:
            self.session.begin_step(next_step)
            if due is not None:
                self._miss(_OVERLAPS)
        else:
            self._turn(next_step, due, starts_next=starts_next)
        self._cost_ns += now() - began - self._idle_ns

    def _turn(self, next_step: int, due: Announcement | None, *, starts_next: bool) -> None:
        """End the window that is over, and start the one that is due or warm up for the one that comes."""
        if self.session is not None:
            self._note_detaching(self.session, next_step)
            self._finish(next_step - 1)
        if due is not None:
            if next_step < self._attach_from:
                self._miss(_DETACHING)
            else:
                self._start(due)
        elif self.prepared is not None:
            self._note_detaching(self.prepared, next_step)
            self._cancel()  # its window was skipped
        elif starts_next and next_step >= self._attach_from:
            self._warm_up()

    def _note_detaching(self, session: KinetoSession, next_step: int) -> None:
        if session.device is not None and detaches():
            self._attach_from = next_step + _DETACH_STEPS

    def _starts_with(self, step: int) -> bool:
        """Return whether a window starts with ``step``."""
        return (bool(self._announced) and self._announced[0].first == step) or self._schedule.starting(step) > 0

    def _receive(self, announcement: Announcement, next_step: int) -> None:
        # Joining late, or without the warm-up step, would profile other work than on other ranks: skip the whole window.
        if announcement.first < next_step:
            self._miss(_TOO_LATE)
        elif announcement.first == next_step and device_type() is not None:
            self._miss(_NO_WARM_UP)
        else:
            self._announced.append(announcement)
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
        self._watch_thread()
        session, self.prepared = self.prepared, None
        try:
            if room_for_trace(self._scratch, self._ranks_here) is None:
                raise KinetoUnavailable(_NO_ROOM)  # noqa: TRY301  # all reasons end below
            if session is None:
                session = KinetoSession()
            # A device that is still busy with steps before the window would show them as part of it, on each rank another part.
            self._drain(session)
            session.start()
        except (KinetoUnavailable, RuntimeError, OSError) as error:
            self._miss(str(error))
            if session is not None and session.prepared:
                session.cancel()
            return
        self.session, self._running, self._spoiled = session, window, False
        session.begin_step(window.first)

    def _drain(self, session: KinetoSession) -> None:
        """Wait for the device, which works meanwhile: this is not the recorder's cost."""
        began = now()
        session.drain()
        self._idle_ns += now() - began

    def _finish(self, last: int) -> None:
        session, self.session = self.session, None
        assert session is not None
        window, path = self._running, None
        try:
            self._drain(session)
            session.stop()
            if self._spoiled:
                raise KinetoUnavailable(_CAPTURE)  # noqa: TRY301  # all reasons end below
            # Created only now, so that a window dropped before its end leaves nothing to remove.
            folder = trace_folder(self._scratch, self._ranks_here)
            if folder is None:
                raise KinetoUnavailable(_NO_ROOM)  # noqa: TRY301  # all reasons end below
            path = folder / f"window-{window.first:09d}.json"
            session.export(path)
        except (KinetoUnavailable, RuntimeError, OSError) as error:
            is_accepted = False
            self._miss(str(error))
        else:
            entry = ProfiledWindow(str(path), window.first, last, keep_trace=window.keep_trace)
            is_accepted = self._ring.put(MessageKind.WINDOW, msgspec.json.encode(entry))
        self._recorded += is_accepted
        if not is_accepted and path is not None:
            remove_trace(path, self._scratch)

    def _miss(self, reason: str) -> None:
        self._ring.put(MessageKind.MISSED_WINDOW, reason.encode()[:500])

    def _warm_up(self) -> None:
        """Prepare for the window that starts with the next step.

        The first start is slow, on a device even more: its profiling library is loaded only now, on all ranks alike, because it
        slows every step from then on.
        """
        on_device = device_type() is not None
        if self._warm and not on_device:
            return
        self._warm = True
        self._watch_thread()
        try:
            session = KinetoSession()
            if on_device:
                session.prepare()
                self.prepared = session
            else:
                session.start()
                session.stop()
        except (KinetoUnavailable, RuntimeError):
            return

    def _cancel(self) -> None:
        session, self.prepared = self.prepared, None
        if session is not None:
            session.cancel()

    def _publish_cost(self) -> None:
        self._published_ns = self._cost_ns
        self._ring.set_window_cost(self._cost_ns, self._recorded)

    def yield_to_script(self) -> None:
        """Drop the current window, because the script starts a profiler of its own, which has priority."""
        if self._stop():
            self._miss("another profiler was started")

    def _stop(self) -> bool:
        """Stop the profiler. Return whether a window is lost by this."""
        self._cancel()
        if self.session is None:
            return False
        began = now()
        session, self.session = self.session, None
        session.stop()
        self._cost_ns += now() - began
        return True

    @property
    def is_profiling(self) -> bool:
        """True while the profiler is on or warms up."""
        return self.session is not None or self.prepared is not None

    def _watch_thread(self) -> None:
        """Stop the profiler if this thread ends: torch crashes if a thread ends with one, or if another thread stops it."""
        self._thread = threading.get_ident()
        if not hasattr(self._of_thread, "end"):
            self._of_thread.end = _ThreadEnd(self._end_thread)

    def _end_thread(self) -> None:
        if threading.get_ident() == self._thread:
            self._has_ended = self._stop()

    def _report_end(self) -> None:
        if self._has_ended:
            self._has_ended = False
            self._miss(_THREAD_ENDED)

    def abandon(self) -> None:
        """Drop the current window without stopping its profiler, which only the thread that started it may do."""
        self._report_end()
        if self.is_profiling:
            never_free((self.session, self.prepared))
            self.session = self.prepared = None
            self._miss(_OTHER_THREAD)

    def close(self, *, other_thread: bool = False) -> None:
        """Publish the cost of windows, and stop a running one without a result. ``other_thread``: not on the training thread."""
        self._publish_cost()
        self._report_end()
        if other_thread:
            self.abandon()
        self._cancel()
        if self.session is not None:
            session, self.session = self.session, None
            session.stop()
