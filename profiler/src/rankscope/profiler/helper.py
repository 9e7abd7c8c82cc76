"""The process beside each rank that writes what the rank recorded: ``python -m rankscope.profiler.helper SCRATCH``.

It reads the ring, writes the run directory and the spool file, reduces profiler windows, and notices the end of the rank by the
end of its own standard input. It is niced, ignores the signals meant for the job, and never loads torch.
"""

from __future__ import annotations

import gzip
import os
import select
import shutil
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.duties import Duties, Surroundings
from rankscope.profiler.handover import RING_FILE, EntryKind, Window, read_hello
from rankscope.profiler.publishing import Publishing
from rankscope.profiler.ring import End, RingReader
from rankscope.profiler.scratch import hold, note_recorded, remove_trace, sweep
from rankscope.profiler.store import RunStore
from rankscope.runs.errors import InputError
from rankscope.runs.records import EndReason, RankInfo, StepRecord

POLL_SECONDS: Final = 0.2
LAST_TRY_SECONDS: Final = 10.0
"""How long a full disk may hold up the end."""


class Helper:
    """Everything of one rank, from its first step to its end."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._hello = read_hello(scratch)
        self._ring = RingReader(scratch / RING_FILE)
        self._hold = hold(scratch)
        self._store = RunStore(self._hello)
        self._windows: deque[Window] = deque()
        self._disabled = False
        self._noted = False
        self._missed_windows = 0
        self._traces: deque[Path] = deque()
        around = Surroundings(
            hello=self._hello,
            scratch=scratch,
            run=lambda: self._store.run,
            info=self._rank_info,
            begun=lambda: self._store.begun,
            say=self._say,
        )
        self._duties = Duties([Publishing(around)], self._say)

    def run(self) -> None:
        """Work until the rank is gone, then finish."""
        parent = os.getppid()
        sweep()
        os.set_blocking(0, False)
        while True:
            # Asked before the ring is read: after the rank's end one more reading sees everything.
            gone = _rank_is_gone(parent)
            while self._take():
                pass
            self._store.flush()
            self._note()
            self._duties.tick()
            if gone:
                break
            if self._windows:
                self._reduce(self._windows.popleft())
            else:
                select.select([0], [], [], POLL_SECONDS)
        while self._windows:
            self._reduce(self._windows.popleft())
        self._finish()

    def _note(self) -> None:
        if self._store.begun and not self._noted:
            self._noted = True
            note_recorded(self._scratch)

    def _take(self) -> int:
        entries = self._ring.read(500)
        for kind, payload in entries:
            if kind == EntryKind.STEP:
                self._duties.step(msgspec.json.decode(payload, type=StepRecord))
                self._store.add("steps", payload)
            elif kind == EntryKind.WINDOW:
                self._windows.append(msgspec.json.decode(payload, type=Window))
            elif kind == EntryKind.MISSED_WINDOW:
                self._missed(payload.decode(errors="replace"))
        if self._ring.disabled_reason and not self._disabled:
            self._disabled = self._store.write_rank(self._rank_info())
        return len(entries)

    def _missed(self, reason: str) -> None:
        if not self._missed_windows:
            self._say(f"a profiler window was left out: {reason}")
        self._missed_windows += 1

    def _reduce(self, window: Window) -> None:
        path = Path(window.path)
        try:
            # Imported for the first window: the rank of a run without windows needs no numpy.
            from rankscope.analysis.reduce import reduce_trace
            from rankscope.analysis.traces import read_trace

            reduction = reduce_trace(read_trace(path))
        except InputError as error:
            self._missed(str(error))
        except Exception as error:  # noqa: BLE001  # no trace, however odd, may cost the step records
            self._missed(f"{type(error).__name__}: {error}")
        else:
            self._store.add("windows", *reduction.breakdowns)
            self._store.add("collectives", *reduction.collectives)
            self._store.add("kernels", *reduction.kernels)
            for breakdown in reduction.breakdowns:
                self._duties.breakdown(breakdown)
            self._store.flush()
        if self._hello.settings.keep_traces and not self._store.refused:
            self._keep(path)
        remove_trace(path, self._scratch)

    def _keep(self, path: Path) -> None:
        kept = self._store.folder / "traces" / f"{path.stem}.json.gz"
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, gzip.open(kept, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target)
            self._traces.append(kept)
            while len(self._traces) > self._hello.settings.keep_traces:
                self._traces.popleft().unlink(missing_ok=True)
        except OSError as error:
            self._say(f"cannot keep the trace {kept.name}: {error.strerror or error}")

    def _dropped(self) -> int:
        return self._ring.dropped + self._store.dropped

    def _rank_info(self, *, end_unix_ns: int | None = None, end_reason: EndReason | None = None) -> RankInfo:
        return msgspec.structs.replace(
            self._hello.rank,
            end_unix_ns=end_unix_ns,
            end_reason=end_reason,
            dropped_records=self._dropped(),
            missed_windows=self._missed_windows,
            recorder_cost_us=self._ring.cost_ns / 1000,
            disabled_reason=self._ring.disabled_reason,
        )

    def _finish(self) -> None:
        ended = time.time_ns()
        reasons: dict[End, EndReason] = {End.SILENT: "killed", End.EXIT: "exit", End.CRASH: "crash"}
        reason: EndReason = "disabled" if self._ring.disabled_reason else reasons[self._ring.end]
        deadline = time.monotonic() + LAST_TRY_SECONDS
        while not (self._store.flush(now=True) and self._store.write_rank(self._rank_info(end_unix_ns=ended, end_reason=reason))):
            if time.monotonic() > deadline:
                self._say("gave up writing the last records")
                break
            time.sleep(POLL_SECONDS)
        self._note()
        self._store.close()
        self._duties.end(vanished=self._ring.end is End.SILENT)
        self._ring.close()

    def _say(self, message: str) -> None:
        with suppress(OSError, ValueError):
            print(f"rankscope: rank {self._hello.rank.rank}: {message}", file=sys.stderr, flush=True)


def _rank_is_gone(parent: int) -> bool:
    # A forked child of the rank may keep the pipe open; a new parent says the same.
    if os.getppid() != parent:
        return True
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def main(scratch: Path) -> None:
    """Run, and leave nothing in local memory whatever happens."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The job is being stopped; the helper's end is the end of the rank.
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(10)
    try:
        Helper(scratch).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
