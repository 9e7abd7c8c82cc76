"""The helper's duty to have all ranks profile the same steps: rank 0's helper plans, the others ask it, each tells its rank.

Files and sockets are threads' business; the main thread reports, and passes on what has been announced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from rankscope.profiler.helper.asking import Asking
from rankscope.profiler.helper.duties import Duty, Surroundings
from rankscope.profiler.helper.pace import Pace
from rankscope.profiler.helper.planning import Planning
from rankscope.profiler.helper.sidestore import SideWindow
from rankscope.profiler.plan import exchange_seconds
from rankscope.profiler.ring import Announcement, RingReader
from rankscope.runs.records import StepRecord

_LATE: Final = "this rank heard of it when it had begun"
_FORGET_STEPS: Final = 10_000


class Coordination(Duty):
    """``missed`` counts a window that this rank will not profile, with the reason."""

    def __init__(self, around: Surroundings, ring: RingReader, missed: Callable[[str], None]) -> None:
        self._around = around
        self._ring = ring
        self._missed = missed
        self._pace = Pace()
        self._due = 0.0
        self._period = exchange_seconds(around.hello.rank.world_size, around.hello.settings.plan_ahead_seconds)
        self._lock = threading.Lock()
        self._heard: dict[int, SideWindow] = {}
        """Windows of this rank by their first step, told by whichever thread; kept a while after they are over."""
        self._told: set[int] = set()
        """Those that the training thread has been asked for, or was to be and it was too late."""
        self._number = 0
        self._post: Planning | Asking | None = None

    def step(self, record: StepRecord) -> None:
        """Count it."""
        self._pace.add(record)

    def tick(self) -> None:
        """Report now and then, and announce."""
        step = self._pace.last_step
        settings = self._around.hello.settings
        if step is None or (settings.window_steps <= 0 and self._around.hello.rank.rank):
            return
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._period / 2
            info = self._around.info()
            # Switched off, it stays at its last step, and the planner would wait for it for ever; so it is to be forgotten.
            report = None if info.disabled_reason else self._pace.report(info)
            if self._post is None and self._around.begun():
                if self._around.hello.rank.rank:
                    self._post = Asking(self._around, self._hear, since=step)
                else:
                    self._post = Planning(self._around, self._hear)
                self._post.start()
            if self._post is not None:
                self._post.report = report
        self._announce(step)

    def _hear(self, windows: Iterable[SideWindow]) -> None:
        with self._lock:
            for window in windows:
                self._heard.setdefault(window.first, window)

    def _announce(self, step: int) -> None:
        """Ask the training thread for each window once, as soon as it has heard of the one before.

        Not only when that is over: this sees a step's end later than the thread, and the next window may be a step away.
        """
        with self._lock:
            for first in [first for first in self._heard if first < step - _FORGET_STEPS]:
                del self._heard[first]
                self._told.discard(first)
            waiting = sorted((self._heard[first] for first in self._heard.keys() - self._told), key=lambda window: window.first)
        for window in waiting:
            if window.first <= step:
                self._missed(_LATE)
            elif self._ring.heard:
                self._number += 1
                self._ring.announce(Announcement(self._number, window.first, window.steps, window.keep_trace))
            else:
                return
            self._told.add(window.first)

    def end(self, *, vanished: bool) -> None:  # noqa: ARG002  # it ends either way
        """Nobody needs to plan for this rank any more."""
        if self._post is not None:
            self._post.stop()
