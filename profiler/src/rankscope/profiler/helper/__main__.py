"""Helper process beside each rank, which writes the rank's records: ``python -m rankscope.profiler.helper SCRATCH``.

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

from rankscope.profiler.handover import RING_FILE, EntryKind, Window, read_exit_status, read_hello
from rankscope.profiler.helper.collectives.collective_times import CollectiveTimes
from rankscope.profiler.helper.collectives.flight import FlightDumps
from rankscope.profiler.helper.coordination.duty import Coordination
from rankscope.profiler.helper.duties import Duties, Surroundings
from rankscope.profiler.helper.joining import Joining
from rankscope.profiler.helper.lasting import LastingCost
from rankscope.profiler.helper.publishing.otlp import OtlpTraces
from rankscope.profiler.helper.publishing.published import Publishing
from rankscope.profiler.helper.sampling.hardware import Hardware
from rankscope.profiler.helper.sampling.stacks import Stacks
from rankscope.profiler.helper.usual import Usual
from rankscope.profiler.helper.writing.keeping import WRONG_BYTES, Keeping, keeps_wrong
from rankscope.profiler.helper.writing.reducing import Reducing
from rankscope.profiler.helper.writing.store import RETAINED_TRACES, RunStore
from rankscope.profiler.helper.writing.storing import END_SECONDS, STUCK_SECONDS, Storing
from rankscope.profiler.ring import End, RingReader
from rankscope.profiler.scratch import hold, note_recorded, sweep
from rankscope.runs.decoders import make_decoders
from rankscope.runs.records import EndReason, RankInfo, StepRecord

POLL_SECONDS: Final = 0.2


class Helper:
    """Helper of one rank, from its first step to its end."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._hello = read_hello(scratch)
        self._ring = RingReader(scratch / RING_FILE)
        self._hold = hold(scratch)
        self._store = RunStore(self._hello)
        self._storing = Storing(self._store)
        self._usual = Usual()
        self._lasting = LastingCost()
        kind = self._hello.rank.device_kind
        self._reducing = Reducing(scratch, self._keeping(), judge=self._usual.judged, device_kind=kind)
        self._joining = Joining()
        self._disabled = False
        self._noted = self._ticked = False
        self._steps_in_a_row = 0
        """Number of consecutive raw steps among the last entries read."""
        self._missed_windows = 0
        around = Surroundings(
            hello=self._hello,
            scratch=scratch,
            run=lambda: self._store.run,
            info=self._rank_info,
            begun=lambda: self._store.begun,
            say=self._say,
        )
        self._stacks = Stacks(around, lambda samples: self._store.add("stacks", samples))
        self._times = CollectiveTimes(
            around, lambda block: self._store.add("durations", block), lambda: self._store.waiting("durations")
        )
        coordination = Coordination(around, self._ring, self._missed, self._stacks.ask)
        self._duties = Duties(
            [
                Publishing(around),
                Hardware(around),
                OtlpTraces(around),
                FlightDumps(around),
                self._stacks,
                self._times,
                coordination,
            ],
            self._say,
        )

    def _keeping(self) -> Keeping:
        settings, rank = self._hello.settings, self._hello.rank
        wrong_bytes = WRONG_BYTES if settings.retain_bytes is None else round(settings.retain_bytes * RETAINED_TRACES)
        return Keeping(
            self._scratch,
            keep=settings.keep_traces,
            keep_in=lambda: self._store.folder if self._store.begun and not self._store.refused else None,
            say=self._say,
            wrong_bytes=wrong_bytes if keeps_wrong(rank.rank, rank.world_size) else 0,
        )

    def run(self) -> None:
        """Work until the rank has ended, then finish."""
        parent = os.getppid()
        os.set_blocking(0, False)
        make_decoders()
        self._storing.start()
        sweep()
        while True:
            # Checked before reading the ring: after the rank's end one more reading gets everything.
            gone = _rank_is_gone(parent)
            while self._take(ended=gone):
                pass
            self._record(self._joining.overdue())
            self._free()
            self._collect()
            self._storing.wake()
            self._note()
            self._tick()
            if gone:
                break
            select.select([0], [], [], POLL_SECONDS)
        self._record(self._joining.rest())
        left = self._reducing.finish(END_SECONDS)
        self._collect()
        if left:
            self._missed_windows += left
            self._say(f"gave up reducing {left} profiled windows, which took too long")
        self._finish()

    def _tick(self) -> None:
        # Metrics carry the identity of the run, which another rank may have created.
        if self._storing.settled:
            self._ticked = True
            self._duties.tick()

    def _note(self) -> None:
        if self._store.begun and not self._noted:
            self._noted = True
            note_recorded(self._scratch, self._store.attempt, self._hello.rank.rank)

    def _take(self, *, ended: bool) -> int:
        entries = self._ring.read(500, ended=ended, free=False)
        for kind, payload in entries:
            self._steps_in_a_row = self._steps_in_a_row + 1 if kind == EntryKind.RAW_STEP else 0
            try:
                self._take_entry(kind, payload)
            except Exception as error:  # noqa: BLE001  # one invalid entry must not cost the entries after it
                self._store.lose(1, error)
        self._free()
        if self._ring.disabled_reason and not self._disabled:
            self._disabled = True
            self._storing.write_rank(self._own_info())
        return len(entries)

    def _free(self) -> None:
        # Entries that are not records yet stay in the ring: if this process is killed, the next one reads them again.
        self._ring.free(keep=min(self._joining.unshared, self._steps_in_a_row))

    def _take_entry(self, kind: int, payload: bytes) -> None:
        if kind == EntryKind.STEP:
            self._record(self._joining.step(payload))
        elif kind == EntryKind.RAW_STEP:
            self._duties.raw(payload)
            self._record(self._joining.raw(payload))
        elif kind == EntryKind.DEVICE:
            self._record(self._joining.device(payload))
        elif kind == EntryKind.SPAN:
            self._record(self._joining.span(payload))
        elif kind == EntryKind.WINDOW:
            self._reducing.add(msgspec.json.decode(payload, type=Window))
        elif kind == EntryKind.MISSED_WINDOW:
            self._missed(payload.decode(errors="replace"))

    def _record(self, records: list[StepRecord]) -> None:
        for record in records:
            self._usual.add(record)
            if self._hello.rank.device_kind != "cpu":
                self._lasting.add(record)
            self._duties.step(record)
            self._store.add_step(record)

    def _missed(self, reason: str) -> None:
        if not self._missed_windows:
            self._say(f"a profiler window was left out: {reason}")
        self._missed_windows += 1

    def _collect(self) -> None:
        for reduced in self._reducing.results():
            if reduced.reason is not None:
                self._missed(reduced.reason)
            self._store.add("windows", *reduced.breakdowns)
            self._store.add("collectives", *reduced.collectives)
            self._store.add("kernels", *reduced.kernels)
            for breakdown in reduced.breakdowns:
                self._duties.breakdown(breakdown)

    def _rank_info(self) -> RankInfo:
        return self._store.completed(self._own_info())

    def _own_info(self, *, end_unix_ns: int | None = None, end_reason: EndReason | None = None) -> RankInfo:
        return msgspec.structs.replace(
            self._hello.rank,
            attempt=self._store.attempt,
            end_unix_ns=end_unix_ns,
            end_reason=end_reason,
            dropped_records=self._ring.dropped,
            missed_windows=self._missed_windows,
            recorder_cost_us=self._ring.cost_ns / 1000 + self._lasting.us,
            window_cost_us=self._ring.window_cost_ns / 1000,
            windows=self._ring.windows,
            disabled_reason=self._ring.disabled_reason,
        )

    def _finish(self) -> None:
        ended = time.time_ns()
        self._stacks.finish()
        self._times.finish()
        end = self._end()
        reason: EndReason = "disabled" if self._ring.disabled_reason else _REASONS[end]
        if not self._storing.finish(self._own_info(end_unix_ns=ended, end_reason=reason)):
            self._say("gave up writing the last records")
        if not self._reducing.finish_keeping(STUCK_SECONDS):
            self._say("gave up keeping the last traces, which took too long")
        self._note()
        if not self._ticked:
            self._tick()
        self._duties.end(vanished=end is End.SILENT)
        self._ring.close()

    def _end(self) -> End:
        """Return how the rank ended: as it said itself, unless its exit status says more."""
        end, status = self._ring.end, read_exit_status(self._scratch)
        if status is None or end not in (End.SILENT, End.EXIT):
            return end
        return End.CRASH if status & 0xFF else End.EXIT

    def _say(self, message: str) -> None:
        with suppress(OSError, ValueError):
            print(f"rankscope: rank {self._hello.rank.rank}: {message}", file=sys.stderr, flush=True)


_REASONS: Final[dict[End, EndReason]] = {
    End.SILENT: "killed", End.EXIT: "exit", End.CRASH: "crash", End.INTERRUPTED: "interrupted",
}  # fmt: skip


def _rank_is_gone(parent: int) -> bool:
    # A forked child of the rank may keep the pipe open; a new parent process also shows that the rank has ended.
    if os.getppid() != parent:
        return True
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def main(scratch: Path) -> None:
    """Run the helper, and remove its scratch folder from local memory even after an error."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # These signals stop the job; the helper ends when the rank does.
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(10)
    try:
        Helper(scratch).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
