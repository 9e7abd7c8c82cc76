"""What a rank that stands still is doing: read from its ring, and written into the run directory.

A training thread that hangs cannot report anything, but the words that it wrote into the ring show in which phase it is. Nothing
is written for a rank that goes on, so a healthy job of a thousand ranks causes no load.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.process import stat_fields
from rankscope.profiler.helper.step_assembler import StepAssembler
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.phases import PhaseInterval
from rankscope.profiler.ring import RingReader
from rankscope.profiler.step_decoder import activity
from rankscope.profiler.work import CHECKPOINT
from rankscope.runs.records import PHASES, ProcessState, RankActivity, RankInfo, StepRecord

LEAST_SECONDS: Final = 10.0
"""Least time without an event after which a rank stands still."""
FIRST_SECONDS: Final = 60.0
"""The same before this helper has seen a step, when it replaced one that was killed."""
USUAL_STEPS: Final = 3.0
"""The same in typical steps."""
TIMES_LONGEST: Final = 1.5
"""The same as a multiple of the longest step that came twice, such as one with a checkpoint."""
LOOK_SECONDS: Final = 1.0
"""Least time between two looks at the ring."""
REFRESH_SECONDS: Final = 30.0
_STATES: Final[dict[str, ProcessState]] = {"T": "stopped", "D": "disk"}


class StandstillMonitor:
    """Detector of a rank that stands still. ``clock_ns`` is that of the ring's events, ``unix_ns`` the system's time."""

    def __init__(
        self,
        ring: RingReader,
        assembler: StepAssembler,
        baseline: StepTimeBaseline,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ring, self._assembler, self._baseline = ring, assembler, baseline
        self._clock_ns, self._unix_ns = clock_ns, unix_ns
        self._longest_us: list[float] = []
        """Durations of the two longest steps."""
        self._due_ns = 0
        self._activity: RankActivity | None = None

    def add(self, record: StepRecord) -> None:
        """Add a step of the rank."""
        self._longest_us = heapq.nlargest(2, [*self._longest_us, record.wall_us])

    def activity(self, info: RankInfo) -> RankActivity | None:
        """Return what the rank is doing; ``None``: it goes on, or nothing is known."""
        now, last = self._clock_ns(), self._assembler.last
        patience_ns = round(self._patience_s() * 1e9)
        if last is not None and now - last.ended_ns < patience_ns:
            self._activity = None
        elif now >= self._due_ns:
            self._due_ns = now + round(LOOK_SECONDS * 1e9)
            self._activity = self._look(info, now, patience_ns)
        return self._activity

    def _patience_s(self) -> float:
        if self._assembler.last is None:
            return FIRST_SECONDS
        typical = self._baseline.typical(1)
        repeated_us = self._longest_us[1] if len(self._longest_us) > 1 else 0.0
        usual_us = 0.0 if typical is None else typical.median_us
        return max(LEAST_SECONDS, USUAL_STEPS * usual_us / 1e6, TIMES_LONGEST * repeated_us / 1e6)

    def _look(self, info: RankInfo, now: int, patience_ns: int) -> RankActivity | None:
        last, doing = self._assembler.last, activity(self._ring.current(), self._ring.ready_ns)
        if self._ring.spilled or (doing is None and last is None):
            return None
        phase, since_ns, section, waiting = PHASES[-1], 0, None, None
        if doing is not None:
            phase, since_ns = PHASES[doing.phase], doing.since_ns
            section = CHECKPOINT if doing.checkpoint else None if doing.section is None else self._ring.name(doing.section)
        if last is not None:
            since_ns = max(since_ns, last.ended_ns)
        if now - since_ns < patience_ns:
            return None
        if doing is not None and doing.waits:
            waiting = True
        elif last is not None and last.waits_known and not (doing is not None and doing.unseen):
            waiting = False
        unix_ns = self._unix_ns()
        return RankActivity(
            attempt=info.attempt,
            rank=info.rank,
            step=None if last is None else last.number + 1,
            phase=phase,
            section=section or None,
            waiting=waiting,
            process=process_state(info.pid),
            since_unix_ns=max(0, unix_ns - (now - since_ns)),
            updated_unix_ns=unix_ns,
        )


class ActivityFile(HelperTask):
    """Task that keeps ``activity.json`` while the rank stands still. ``write`` takes its content; ``None`` removes it."""

    def __init__(self, context: HelperContext, monitor: StandstillMonitor, write: Callable[[RankActivity | None], None]) -> None:
        self._context, self._monitor, self._write = context, monitor, write
        self._written: RankActivity | None = None
        self._started = False

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:  # noqa: ARG002
        """Add a step to those that tell how long to wait."""
        self._monitor.add(record)

    def tick(self) -> None:
        """Write what the rank is doing, if it stands still."""
        if not self._started:
            if not self._context.begun():
                return
            self._started = True
            self._write(None)  # the file of a killed predecessor of this helper
        activity, written = self._context.activity(), self._written
        if activity is None:
            if written is not None:
                self.finish()
        elif written is None or _changed(activity, written) or _refreshes(activity, written):
            self._written = activity
            self._write(activity)

    def finish(self) -> None:
        """Remove the file: the rank goes on, or has ended."""
        self._written = None
        self._write(None)


def _changed(activity: RankActivity, written: RankActivity) -> bool:
    """Return whether the rank does something else; the state of its process varies by itself."""
    same_times = {"since_unix_ns": 0, "updated_unix_ns": 0}
    now, before = (
        msgspec.structs.replace(row, process=None if row.process == "disk" else row.process, **same_times)
        for row in (activity, written)
    )
    return now != before


def _refreshes(activity: RankActivity, written: RankActivity) -> bool:
    return abs(activity.updated_unix_ns - written.updated_unix_ns) >= REFRESH_SECONDS * 1e9


def process_state(pid: int, proc: Path = Path("/proc")) -> ProcessState | None:
    """Return whether the main thread of a process is stopped or in an uninterruptible wait; ``None``: neither, or not known."""
    with suppress(OSError, IndexError):
        return _STATES.get(stat_fields(pid, proc)[0])
    return None
