"""Helper process beside each rank, which writes the rank's records: ``python -m rankscope.profiler.helper SCRATCH MEMORY``.

It reads the ring, writes the run directory and the spool file, and reduces profiler windows. It detects the end of the rank by
the end of its own standard input. It is niced, ignores the signals meant for the job, and never loads torch.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.process import JOB_SIGNALS, stat_fields
from rankscope.profiler.handover import MessageKind, ProfiledWindow, read_handover
from rankscope.profiler.helper.collectives.collective_times import CollectiveTimes
from rankscope.profiler.helper.collectives.flight import FlightDumps
from rankscope.profiler.helper.coordination.coordination import Coordination
from rankscope.profiler.helper.cupti_cost import CuptiCost
from rankscope.profiler.helper.publishing.metrics_publisher import MetricsPublisher
from rankscope.profiler.helper.publishing.otlp import OtlpTraces
from rankscope.profiler.helper.sampling.hardware import HardwareTask
from rankscope.profiler.helper.sampling.stacks import StackSampler
from rankscope.profiler.helper.standstill import ActivityFile, StandstillMonitor
from rankscope.profiler.helper.step_assembler import AssembledStep, StepAssembler
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.helper.tasks import HelperContext, HelperTasks
from rankscope.profiler.helper.writing.store import RETAINED_TRACES, RunStore
from rankscope.profiler.helper.writing.trace_reducer import TraceReducer
from rankscope.profiler.helper.writing.trace_retention import WRONG_BYTES, TraceRetention, keeps_wrong
from rankscope.profiler.helper.writing.window_judge import WindowJudge
from rankscope.profiler.helper.writing.writer_thread import END_SECONDS, STUCK_SECONDS, WriterThread
from rankscope.profiler.ring import EndState, RingReader
from rankscope.profiler.scratch import hold, note_recorded, note_unwritten, sweep
from rankscope.runs.decoders import make_decoders
from rankscope.runs.records import EndReason, RankInfo

POLL_SECONDS: Final = 0.2
_EXIT_SECONDS: Final = 1.0
"""Longest wait for a sign that a rank exits once its end of the pipe is closed, where ``/proc`` does not show it."""
_PF_EXITING: Final = 4
"""Flag of a process that exits, see ``/proc/PID/stat``."""
_CLOSED: Final = "the script has closed the recorder's files"
_WORDS: Final = 8192
"""Number of words that are read at once."""


class Helper:
    """Helper of one rank, from its first step to its end."""

    def __init__(self, scratch: Path, memory: int) -> None:
        self._scratch = scratch
        self._handover = read_handover(scratch)
        self._ring = RingReader(memory)
        self._hold = hold(scratch)
        self._store = RunStore(self._handover, joined=lambda attempt: note_recorded(scratch, attempt, self._handover.rank.rank))
        self._writer = WriterThread(self._store)
        self._baseline = StepTimeBaseline()
        self._judge = WindowJudge(self._baseline)
        self._cupti_cost = CuptiCost(self._baseline)
        kind = self._handover.rank.device_kind
        self._retention = self._make_retention()
        self._reducer = TraceReducer(scratch, self._retention, judge=self._judge.judge, device_kind=kind)
        self._assembler = StepAssembler(self._ring.name, self._ring.at, lose=lambda error: self._store.lose(1, error))
        self._standstill = StandstillMonitor(self._ring, self._assembler, self._baseline)
        self._disabled = False
        self._ticked = self._closed = False
        self._missed_windows = 0
        context = HelperContext(
            handover=self._handover,
            scratch=scratch,
            run=lambda: self._store.run,
            info=self._rank_info,
            begun=lambda: self._store.begun,
            baseline=self._baseline,
            report=self._report,
            activity=lambda: self._standstill.activity(self._own_info()),
        )
        self._activity = ActivityFile(context, self._standstill, self._writer.write_activity)
        self._stacks = StackSampler(context, lambda samples: self._store.add("stacks", samples))
        self._times = CollectiveTimes(
            context, lambda block: self._store.add("durations", block), lambda: self._store.waiting("durations")
        )
        coordination = Coordination(context, self._ring, self._missed, self._stacks.request)
        self._tasks = HelperTasks(
            [
                MetricsPublisher(context),
                HardwareTask(context),
                OtlpTraces(context),
                FlightDumps(context),
                self._stacks,
                self._times,
                coordination,
                self._activity,
            ],
            self._report,
        )

    def _make_retention(self) -> TraceRetention:
        settings, rank = self._handover.settings, self._handover.rank
        wrong_bytes = WRONG_BYTES if settings.retain_bytes is None else round(settings.retain_bytes * RETAINED_TRACES)
        return TraceRetention(
            self._scratch,
            keep=settings.keep_traces,
            keep_in=lambda: self._store.folder if self._store.begun and not self._store.refused else None,
            report=self._report,
            wrong_bytes=wrong_bytes if keeps_wrong(rank.rank, rank.world_size) else 0,
        )

    def run(self) -> None:
        """Work until the rank has ended, then finish."""
        parent = os.getppid()
        os.set_blocking(0, False)
        make_decoders()
        self._writer.start()
        sweep()
        while True:
            # Checked before reading the ring: after the rank's end one more reading gets everything.
            rank_ended = _has_rank_ended(parent)
            while self._take():
                pass
            self._collect()
            self._writer.wake()
            self._tick()
            if rank_ended:
                break
            select.select([0], [], [], POLL_SECONDS)
        self._record(self._assembler.remaining_steps())
        unreduced = self._reducer.finish(END_SECONDS)
        self._collect()
        if unreduced:
            self._missed_windows += unreduced
            self._report(f"gave up reducing {unreduced} profiled windows, which took too long")
        self._finish()

    def _tick(self) -> None:
        # Metrics carry the identity of the run, which another rank may have created.
        if self._writer.settled:
            self._ticked = True
            self._tasks.each(lambda task: task.tick())

    def _take(self) -> int:
        words = self._ring.read(_WORDS)
        messages, steps = self._assembler.add(words), self._assembler.complete()
        # Words that are not records yet stay in the ring: if this process is killed, the next one reads them again. Before the
        # others are handled, because no step may be written twice.
        self._ring.free(self._assembler.position)
        for kind, content in messages:
            try:
                self._take_message(kind, content)
            except Exception as error:  # noqa: BLE001  # one invalid message must not cost the others
                self._store.lose(1, error)
        self._record(steps)
        if self._ring.disabled_reason and not self._disabled:
            self._disabled = True
            self._writer.write_rank(self._own_info())
        return len(words)

    def _take_message(self, kind: int, content: bytes) -> None:
        if kind == MessageKind.WINDOW:
            self._reducer.add(msgspec.json.decode(content, type=ProfiledWindow))
        elif kind == MessageKind.THREAD:
            self._stacks.follow(int.from_bytes(content, sys.byteorder))
        elif kind == MessageKind.MISSED_WINDOW:
            self._missed(content.decode(errors="replace"))

    def _record(self, steps: list[AssembledStep]) -> None:
        for record, intervals in steps:
            self._baseline.add(record)
            self._judge.add(record)
            if self._handover.rank.device_kind != "cpu":
                self._cupti_cost.add(record)
            self._tasks.each(lambda task: task.step(record, intervals))  # noqa: B023  # called at once
            self._store.add_step(record)

    def _missed(self, reason: str) -> None:
        if not self._missed_windows:
            self._report(f"a profiler window was left out: {reason}")
        self._missed_windows += 1

    def _collect(self) -> None:
        for reduced in self._reducer.results():
            if reduced.reason is not None:
                self._missed(reduced.reason)
            self._store.add("windows", *reduced.breakdowns)
            self._store.add("collectives", *reduced.collectives)
            self._store.add("kernels", *reduced.kernels)
            for breakdown in reduced.breakdowns:
                self._tasks.each(lambda task: task.breakdown(breakdown))  # noqa: B023  # as above

    def _rank_info(self) -> RankInfo:
        return self._store.completed(self._own_info())

    def _own_info(self, *, end_unix_ns: int | None = None, end_reason: EndReason | None = None) -> RankInfo:
        return msgspec.structs.replace(
            self._handover.rank,
            attempt=self._store.attempt,
            end_unix_ns=end_unix_ns,
            end_reason=end_reason,
            dropped_records=self._ring.dropped,
            missed_windows=self._missed_windows,
            recorder_cost_us=self._ring.cost_ns / 1000 + self._cupti_cost.us,
            window_cost_us=self._ring.window_cost_ns / 1000,
            windows=self._ring.windows,
            disabled_reason=self._disabled_reason(),
        )

    def _finish(self) -> None:
        ended = time.time_ns()
        self._stacks.finish()
        self._times.finish()
        self._activity.finish()
        end = self._end()
        reason: EndReason = "disabled" if self._disabled_reason() else _REASONS[end]
        given_up = self._writer.finish(self._own_info(end_unix_ns=ended, end_reason=reason))
        if given_up:
            self._report(f"gave up writing {given_up}")
        if given_up and not self._store.begun:
            note_unwritten(self._scratch, f"cannot write to {self._handover.settings.run_dir} ({self._store.reason})")
        if not self._retention.finish(STUCK_SECONDS):
            self._report("gave up keeping the last traces, which took too long")
        if not self._ticked:
            self._tick()
        self._tasks.each(lambda task: task.end(vanished=end is EndState.SILENT))
        self._ring.close()

    def _end(self) -> EndState:
        """Return how the rank ended: as it reported, unless its exit status shows more."""
        end, status = self._ring.end, self._ring.exit_status
        if status is not None and end in (EndState.SILENT, EndState.EXIT):
            return EndState.CRASH if status & 0xFF else EndState.EXIT
        if end is EndState.SILENT and _lives_on(self._handover.rank.pid):
            # It trains on, unrecorded, which is no reason for an alert.
            self._closed, end = True, EndState.EXIT
        return end

    def _disabled_reason(self) -> str | None:
        return self._ring.disabled_reason or (_CLOSED if self._closed else None)

    def _report(self, message: str) -> None:
        with suppress(OSError, ValueError):
            print(f"rankscope: rank {self._handover.rank.rank}: {message}", file=sys.stderr, flush=True)


_REASONS: Final[dict[EndState, EndReason]] = {
    EndState.SILENT: "killed", EndState.EXIT: "exit", EndState.CRASH: "crash", EndState.INTERRUPTED: "interrupted",
}  # fmt: skip


def _has_rank_ended(parent: int) -> bool:
    # A forked child of the rank may keep the pipe open; a new parent process also shows that the rank has ended.
    if os.getppid() != parent:
        return True
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def _lives_on(rank: int) -> bool:
    """Return whether the process of the rank, whose end of the pipe is closed, does not exit: its script has closed its files.

    A process that exits closes them, too, and may then take seconds, as drivers of GPUs free memory.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    while os.getppid() == rank:
        try:
            fields = stat_fields(rank)
        except OSError:
            return False
        if fields[0] in ("Z", "X") or int(fields[6]) & _PF_EXITING:
            return False
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)
    return False


def main(scratch: Path, memory: int) -> None:
    """Run the helper, and remove its scratch folder from local memory even after an error.

    ``memory``: handle of the ring's memory.
    """
    for number in JOB_SIGNALS:
        # Slurm sends a signal to every process of a job; the helper ends when the rank does.
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(10)
    try:
        Helper(scratch, memory).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
