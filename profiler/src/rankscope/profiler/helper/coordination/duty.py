"""Task of the helper to make all ranks profile the same steps: rank 0's helper plans, the others query it.

Each helper announces the windows to its rank. Threads handle files and sockets; the main thread makes reports and announces.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final

from rankscope.profiler.helper.coordination.asking import Asking
from rankscope.profiler.helper.coordination.planning import Planning
from rankscope.profiler.helper.coordination.sidestore import SideWindow
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.intervals import PhaseInterval
from rankscope.profiler.plan import RankReport, exchange_seconds
from rankscope.profiler.ring import Announcement, RingReader
from rankscope.runs.records import RankInfo, StepRecord

_LATE: Final = "this rank heard of it when it had begun"
_FORGET_STEPS: Final = 10_000


class Coordination(HelperTask):
    """Task that reports to rank 0 and announces windows. ``missed`` counts a window that is not profiled, with the reason.

    ``captures`` is called when a window on request is announced; on any thread.
    """

    def __init__(
        self, context: HelperContext, ring: RingReader, missed: Callable[[str], None], captures: Callable[[], None] = lambda: None
    ) -> None:
        self._context = context
        self._ring = ring
        self._missed = missed
        self._captures = captures
        self._pace = Pace()
        self._due = 0.0
        self._period = exchange_seconds(context.hello.rank.world_size, context.hello.settings.plan_ahead_seconds)
        self._lock = threading.Lock()
        self._heard: dict[int, SideWindow] = {}
        """Windows of this rank by their first step, added by any thread; kept for a while after they are over."""
        self._told: set[int] = set()
        """First steps of the windows that were announced to the training thread, or that came too late for that."""
        self._number = 0
        self._post: Planning | Asking | None = None

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:  # noqa: ARG002
        """Add a step to the pace."""
        self._pace.add(record)

    def tick(self) -> None:
        """Update the report when it is due, and announce windows."""
        step = self._pace.last_step
        settings = self._context.hello.settings
        if step is None or (settings.window_steps <= 0 and self._context.hello.rank.rank):
            return
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._period / 2
            info = self._context.info()
            # A disabled recorder stays at its last step; without reports the planner forgets it instead of waiting forever.
            report = None if info.disabled_reason else self._pace.report(info)
            if self._post is None and self._context.begun():
                if self._context.hello.rank.rank:
                    self._post = Asking(self._context, self._hear, since=step)
                else:
                    self._post = Planning(self._context, self._hear)
                self._post.start()
            if self._post is not None:
                self._post.report = report
        self._announce(step)

    def _hear(self, windows: Iterable[SideWindow]) -> None:
        with self._lock:
            for window in windows:
                if window.capture and window.first not in self._heard:
                    self._captures()
                self._heard.setdefault(window.first, window)

    def _announce(self, step: int) -> None:
        """Announce each window to the training thread once, as soon as it has read the previous announcement.

        Waiting for the end of the previous window would be too late: the helper sees the end of a step later than the thread,
        and the next window may be one step away.
        """
        with self._lock:
            for first in [first for first in self._heard if first < step - _FORGET_STEPS]:
                del self._heard[first]
                self._told.discard(first)
            waiting = sorted((self._heard[first] for first in self._heard.keys() - self._told), key=lambda window: window.first)
        for window in waiting:
            if window.first <= step:
                self._missed(_LATE)
            elif self._ring.acknowledged:
                self._number += 1
                self._ring.announce(Announcement(self._number, window.first, window.steps, window.keep_trace))
            else:
                return
            self._told.add(window.first)

    def end(self, *, vanished: bool) -> None:  # noqa: ARG002  # the same for every end
        """Stop planning or asking for this rank."""
        if self._post is not None:
            self._post.stop()


_RECENT: Final = 64
_LEAST: Final = 5
"""Least number of steps without the profiler for a median."""


class Pace:
    """Sums over the steps of one rank, and the median of the recent ones."""

    def __init__(self) -> None:
        self.last_step: int | None = None
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._on_device = False
        """True if any step had times on the device; those without are then left out, because its host runs ahead."""
        self._trained_us = 0.0
        self._steps = 0
        self._slowed_us = 0.0
        self._slowed_total_us = 0.0
        self._window_us: float | None = None
        self._windows = 0
        self._windows_cost_us = 0.0
        self._always_on: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank."""
        self.last_step = record.step
        self._steps += 1
        self._trained_us += record.wall_us
        self._on_device |= record.device_us is not None
        if self._on_device and record.device_us is None:
            return
        if not record.profiled:
            self._times.append(record.step_us)
        elif self._times:
            # The profiler slows a step by at most its usual time; any more has another cause, such as a checkpoint.
            usual = median(self._times)
            slowed = min(max(0.0, record.step_us - usual), usual)
            self._slowed_us += slowed
            self._slowed_total_us += slowed

    def report(self, info: RankInfo) -> RankReport | None:
        """Return the current report; ``None`` before the first step."""
        if self.last_step is None:
            return None
        cost, windows_cost = info.recorder_cost_us or 0.0, info.window_cost_us or 0.0
        if info.windows > self._windows:
            spent = windows_cost - self._windows_cost_us + self._slowed_us
            self._window_us = spent / (info.windows - self._windows)
            self._windows, self._windows_cost_us, self._slowed_us = info.windows, windows_cost, 0.0
        if not self._always_on or self._always_on[-1][0] < self._steps:
            self._always_on.append((self._steps, max(0.0, cost - windows_cost)))
        return RankReport(
            rank=info.rank,
            step=self.last_step,
            step_us=max(1e-3, median(self._times)) if len(self._times) >= _LEAST else None,
            always_on_us=self._recently(),
            window_us=self._window_us,
            spent_us=max(cost, windows_cost) + self._slowed_total_us,
            trained_us=self._trained_us,
        )

    def _recently(self) -> float:
        """Return the always-on cost per step over recent reports, so that a slow start does not count."""
        (steps, cost), (steps_now, cost_now) = self._always_on[0], self._always_on[-1]
        if steps_now == steps:
            return cost_now / max(1, steps_now)
        return max(0.0, cost_now - cost) / (steps_now - steps)
