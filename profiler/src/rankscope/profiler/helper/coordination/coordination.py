"""Task of the helper to make all ranks profile the same steps: rank 0's helper chooses them, and every helper reads them.

A thread reads and writes the coordinator files; the main thread makes reports and announces windows to the training thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from rankscope.profiler.helper.coordination.pace import StepPace
from rankscope.profiler.helper.coordination.reports import ReportWriter
from rankscope.profiler.helper.coordination.window_client import AnnouncedWindow, WindowClient
from rankscope.profiler.helper.coordination.window_coordinator import WindowCoordinator
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.phases import PhaseInterval
from rankscope.profiler.plan import RankReport, poll_seconds
from rankscope.profiler.ring import Announcement, RingReader
from rankscope.runs.paths import attempt_dir, reports_dir
from rankscope.runs.records import StepRecord

_LATE: Final = "this rank received the announcement when the window had begun"
_FORGET_STEPS: Final = 10_000
_END_SECONDS: Final = 2.0


class Coordination(HelperTask):
    """Task that reports to rank 0 and announces windows. ``missed`` counts a window that is not profiled, with the reason.

    ``on_capture`` is called when a window on request is received; on any thread.
    """

    def __init__(
        self,
        context: HelperContext,
        ring: RingReader,
        missed: Callable[[str], None],
        on_capture: Callable[[], None] = lambda: None,
    ) -> None:
        handover = context.handover
        self._context = context
        self._ring = ring
        self._missed = missed
        self._on_capture = on_capture
        self._pace = StepPace(context.baseline)
        self._due = 0.0
        self._period = poll_seconds(handover.rank.world_size, handover.settings.plan_ahead_seconds)
        self._report: tuple[RankReport, int] | None = None
        """Last report, and the number of windows recorded; ``None`` while this rank is not recorded."""
        self._since = 0
        """First steps of windows up to this one are from before this helper began."""
        self._lock = threading.Lock()
        self._windows: dict[int, AnnouncedWindow] = {}
        """Windows of this rank by their first step, added by the thread; kept for a while after they are over."""
        self._announced: set[int] = set()
        """First steps of the windows that were announced to the training thread, or that came too late for that."""
        self._number = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:  # noqa: ARG002
        """Add a step to the pace."""
        self._pace.add(record)

    def tick(self) -> None:
        """Update the report when it is due, and announce windows."""
        step = self._pace.last_step
        settings = self._context.handover.settings
        if step is None or (settings.window_steps <= 0 and self._context.handover.rank.rank):
            return
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._period / 2
            info = self._context.info()
            # A disabled recorder stays at its last step: the planner must not wait for it.
            report = None if info.disabled_reason else self._pace.report(info, time.time_ns())
            self._report = None if report is None else (report, info.windows)
            if self._thread is None and self._context.begun():
                self._since = step
                self._thread = threading.Thread(target=self._work, name="coordination", daemon=True)
                self._thread.start()
        self._announce(step)

    def _work(self) -> None:
        try:
            self._coordinate()
        except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
            self._context.report(
                f"coordination failed ({type(error).__name__}: {error}); this rank has no more announced windows"
            )

    def _coordinate(self) -> None:
        handover = self._context.handover
        rank, world_size = handover.rank.rank, handover.rank.world_size
        run, attempt = Path(handover.settings.run_dir), self._context.info().attempt
        # All ranks read the same file: one per host reports its faults.
        client = WindowClient(attempt_dir(run, attempt), (lambda _: None) if handover.rank.local_rank else self._context.report)
        coordinator = None if rank else WindowCoordinator(self._context)
        by_budget = handover.settings.window_every is None
        writer = ReportWriter(reports_dir(run, attempt), rank, world_size, after_windows=by_budget)
        while not self._stop.wait(self._period):
            current = self._report
            if coordinator is not None:
                coordinator.turn(None if current is None else current[0])
            elif current is None:
                writer.remove()
            else:
                writer.offer(*current, time.monotonic())
            self._add(client.read())
        if coordinator is None:
            writer.remove()

    def _add(self, windows: Iterable[AnnouncedWindow]) -> None:
        rank = self._context.handover.rank.rank
        with self._lock:
            for window in windows:
                if window.first <= self._since or (window.ranks is not None and rank not in window.ranks):
                    continue
                if window.reason == "capture" and window.first not in self._windows:
                    self._on_capture()
                self._windows.setdefault(window.first, window)

    def _announce(self, step: int) -> None:
        """Announce each window to the training thread once, as soon as it has read the previous announcement.

        Waiting for the end of the previous window would be too late: the helper sees the end of a step later than the thread,
        and the next window may be one step away.
        """
        with self._lock:
            for first in [first for first in self._windows if first < step - _FORGET_STEPS]:
                del self._windows[first]
                self._announced.discard(first)
            pending = sorted(
                (self._windows[first] for first in self._windows.keys() - self._announced), key=lambda window: window.first
            )
        for window in pending:
            if window.first <= step:
                self._missed(_LATE)
            elif self._ring.acknowledged:
                self._number += 1
                self._ring.announce(Announcement(self._number, window.first, window.steps, window.keep_trace))
            else:
                return
            self._announced.add(window.first)

    def end(self, *, vanished: bool) -> None:  # noqa: ARG002  # the same for every end
        """Stop the thread, without waiting long for a slow disk."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
