"""Task of the helper to record how long each collective took on the device, from NCCL Inspector or the Flight Recorder.

Where ranks wait inside streams, as with FSDP, tensor and pipeline parallelism, no step record shows it; these durations do. The
training thread takes no part in it: the plugin's log is read here, and a dump is written by a thread of the rank.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rankscope.base.problems import ProblemLog
from rankscope.profiler.helper.collectives.flight_times import FlightTimes
from rankscope.profiler.helper.collectives.inspector_log import InspectorLog
from rankscope.profiler.helper.collectives.times_source import NoTimesError, TimesSource
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.durations import DurationBlock
from rankscope.runs.records import StepRecord

WARM_UP: Final = 3
"""Number of steps before the first look: the first ones make the communicators."""
MOST_WAITING: Final = 32
"""Number of blocks that may wait to be written, some 35 kB each; then the source waits, or loses what it cannot keep."""
END_SECONDS: Final = 20.0
"""Longest delay of the end, as by a slow disk."""
PATIENCE: Final = 5
"""Number of failures of the disk in a row after which nothing more is recorded."""


class CollectiveTimes(HelperTask):
    """Task that records durations of collectives, where the job's environment has a source of them.

    ``add`` stores a block, and ``waiting`` returns how many are not written yet. Both may be called on any thread.
    """

    def __init__(self, context: HelperContext, add: Callable[[DurationBlock], None], waiting: Callable[[], int]) -> None:
        self._context = context
        self._add = add
        self._waiting = waiting
        self._source: TimesSource | None = None
        if context.handover.rank.world_size > 1:
            self._source = InspectorLog.of_environment(context) or FlightTimes.of_environment(context)
        self._steps = 0
        self._failures = 0
        self._due = 0.0
        self._busy = False
        self._missing = False
        self._problems = ProblemLog(context.report, each_reason=False)
        self._work: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:  # noqa: ARG002
        """Count a step."""
        del record
        self._steps += 1

    def tick(self) -> None:
        """Begin a look at the source when it is due."""
        if self._source is None or self._busy or self._steps < WARM_UP or not self._context.begun():
            return
        if time.monotonic() < self._due or self._waiting() > MOST_WAITING:
            return
        self._look(last=False)

    def finish(self) -> None:
        """Record the rest, without waiting long for a slow disk. To be called before the last write."""
        # Also of a rank that ends before its first record is written.
        if self._source is None:
            return
        self._look(last=True)
        self._work.put(None)
        if self._worker is not None:
            self._worker.join(END_SECONDS)

    def _look(self, *, last: bool) -> None:
        self._busy = True
        if self._worker is None:
            self._worker = threading.Thread(target=self._run_worker, name="collective times", daemon=True)
            self._worker.start()
        self._work.put(last)

    def _run_worker(self) -> None:
        while (last := self._work.get()) is not None:
            source = self._source
            if source is None:
                continue
            try:
                self._read(source, last=last)
                if last:
                    source.close()
                self._failures = 0
            except NoTimesError as error:
                self._absent(source, str(error), lasting=error.lasting)
            except OSError as error:
                self._failures += 1
                if self._failures >= PATIENCE:
                    self._absent(source, f"{error.filename or 'the disk'}: {error.strerror or error}", lasting=True)
            except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
                self._absent(source, f"{type(error).__name__}: {error}", lasting=True)
            self._due = time.monotonic() + source.wait_seconds()
            self._busy = False

    def _read(self, source: TimesSource, *, last: bool) -> None:
        for block in source.look(last=last):
            self._add(block)
            self._missing = False
        self._problems.report(source.warning(), "losses")

    def _absent(self, source: TimesSource, reason: str, *, lasting: bool) -> None:
        if lasting:
            self._source = None
        if not self._missing:
            self._missing = True
            now = time.time_ns()
            self._add(DurationBlock(source=source.kind, start_unix_ns=now, end_unix_ns=now, missing=reason))
        # One report per host is enough.
        if not self._context.handover.rank.local_rank:
            self._problems.report(f"no durations of collectives: {reason}", "source")
