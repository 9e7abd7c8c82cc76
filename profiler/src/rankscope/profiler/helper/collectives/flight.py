"""Task of the helper to copy Flight Recorder dumps into the run: those torch writes by itself, and requested ones."""

from __future__ import annotations

import errno
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.profiler.flight_files import CRASH, copy_file, done_file, dump_files
from rankscope.profiler.helper.collectives.ras import RasQuestion
from rankscope.profiler.helper.standstill import process_state
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.plan import poll_seconds
from rankscope.profiler.scratch import is_flight_file
from rankscope.runs.control import ControlAnswer, ControlInbox, ControlRequest, answer, make_control_dir, read_answer
from rankscope.runs.paths import flight_dir
from rankscope.runs.records import ProcessState

CHECK_SECONDS: Final = 1.0
"""Least time between two checks; longer with many ranks, because all check the same disk."""
ANSWER_SECONDS: Final = 20.0
"""Longest wait for a rank's dump, which needs the interpreter's lock; a stuck thread may hold it."""
REST_SECONDS: Final = 10.0
"""Least time between two requested dumps: each stops training for a moment, if it still runs."""
MOST_DUMPS: Final = 8
"""Number of requested dumps kept per rank; the oldest are removed."""
END_SECONDS: Final = 10.0
_TOO_SOON: Final = f"another dump was asked for less than {REST_SECONDS:.0f} s ago"

_UNABLE: Final[dict[ProcessState | None, str]] = {
    "stopped": "its process is stopped (state T in ps); `kill -CONT PID` continues it",
    "disk": "its main thread is in an uninterruptible wait, as for a disk (state D in ps)",
    None: "its Python is stuck and holds the interpreter's lock",
}
"""Reason why a process does not dump, by its state."""

_REQUESTS: Final = 1
"""File descriptor of the helper's standard output, which the rank reads, see ``flight_dump``."""
_TEMP_FILE: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE_FILE: Final = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


@dataclass(slots=True)
class _DumpRequest:
    deadline: float
    piped: bool = False
    """True if torch's own pipe has been tried too."""
    given_up: bool = False
    """True if the request was answered with a failure; a late dump is still taken."""


class FlightDumps(HelperTask):
    """Task that collects dumps of its rank, and requests them from the rank on requests in ``control/``.

    All of it but ``tick`` and ``end`` runs on a thread of its own, because the disk may be slow or unavailable.
    """

    def __init__(self, context: HelperContext) -> None:
        self._context = context
        handover = context.handover
        self._rank = handover.rank.rank
        self._run = Path(handover.settings.run_dir)
        self._inbox = ControlInbox(
            self._run,
            "dump",
            since_unix_ns=handover.rank.start_unix_ns,
            # One report per job is enough.
            report=context.report if self._rank == 0 else lambda _: None,
            rank=self._rank,
            clears=self._rank == 0,
        )
        self._watchdog = WatchdogFile.of_environment(self._rank, newer_than_ns=handover.rank.start_unix_ns)
        self._period = max(CHECK_SECONDS, poll_seconds(handover.rank.world_size, handover.settings.plan_ahead_seconds))
        self._attempt = handover.rank.attempt
        """Attempt of the rank; certain once the rank has its place in the run."""
        self._due = 0.0
        self._is_checking = False
        """True while the thread has not finished the last check."""
        self._begun = False
        self._requests: dict[str, _DumpRequest] = {}
        self._refused: dict[str, float] = {}
        """Refused requests that another rank should answer, with the time by which it should have done so."""
        self._rest_until = 0.0
        self._kept_dumps: list[list[Path]] = []
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._failed = False
        self._ras = RasQuestion(context)

    def tick(self) -> None:
        """Start a check for requests, for dumps in reply to them, and for dumps written by torch."""
        if self._is_checking or time.monotonic() < self._due or not self._context.begun():
            return
        self._due = time.monotonic() + self._period
        self._attempt = self._context.info().attempt
        self._is_checking = True
        self._submit(self._look)

    def end(self, *, vanished: bool) -> None:
        """Collect the last dumps: the watchdog may have killed the rank after writing one."""
        del vanished
        if not self._context.begun():
            return
        self._attempt = self._context.info().attempt
        self._submit(self._look_at_the_end)
        self._work.put(None)
        if self._worker is not None:
            self._worker.join(END_SECONDS)

    def _look(self) -> None:
        if not self._begun:
            self._begun = True
            with suppress(OSError):  # the requester can make it too
                make_control_dir(self._run)
        for request in self._inbox.pending():
            self._ask(request)
        for name, dump_request in tuple(self._requests.items()):
            self._follow(name, dump_request)
        for name, due in tuple(self._refused.items()):
            if time.monotonic() >= due:
                self._refuse_alone(name)
        self._collect_watchdog()
        self._is_checking = False

    def _look_at_the_end(self) -> None:
        for name in tuple(self._requests):
            self._finish(name, "the process ended before it answered")
        for name in tuple(self._refused):
            self._refuse_alone(name)
        self._collect_watchdog(last=True)
        for backend, source in dump_files(self._context.scratch, CRASH).items():
            self._keep(source, self._target(f"{CRASH}-{backend}"))

    def _ask(self, request: ControlRequest) -> None:
        name = request.id
        if self._requests:
            self._answer(name, "the process still owes the dump that was asked for before")
            return
        if time.monotonic() < self._rest_until:
            # Ranks that got the same requests refuse alike: one rank answers for all, and the others only if it does not.
            if self._rank == min(request.ranks or [0]):
                self._answer(name, _TOO_SOON, for_all=True)
            else:
                self._refused[name] = time.monotonic() + 2 * self._period + CHECK_SECONDS
            return
        self._rest_until = time.monotonic() + REST_SECONDS
        if self._rank == min(request.ranks or [0]):
            self._ras.ask(self._attempt)  # one rank asks for the whole job
        if not stat.S_ISFIFO(os.fstat(_REQUESTS).st_mode):
            self._answer(name, "this process has no process group whose Flight Recorder could be dumped")
            return
        try:
            os.set_blocking(_REQUESTS, False)
            os.write(_REQUESTS, f"{name}\n".encode())
        except OSError as error:
            self._answer(name, f"the process does not listen: {error.strerror}")
            return
        self._requests[name] = _DumpRequest(time.monotonic() + ANSWER_SECONDS)

    def _refuse_alone(self, name: str) -> None:
        del self._refused[name]
        if read_answer(self._run, name) is None:
            self._answer(name, _TOO_SOON)

    def _follow(self, name: str, request: _DumpRequest) -> None:
        try:
            reason = done_file(self._context.scratch, name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            if request.given_up or time.monotonic() < request.deadline:
                return
            # NCCL's own thread may still be able to dump, if torch's pipe is enabled.
            if not request.piped and self._watchdog is not None and write_to_pipe(self._rank):
                request.piped, request.deadline = True, time.monotonic() + ANSWER_SECONDS
                return
            request.given_up = True
            why = _UNABLE[process_state(self._context.handover.rank.pid)]
            self._answer(name, f"no dump within {ANSWER_SECONDS:.0f} s: {why}")
            return
        self._finish(name, reason)

    def _finish(self, name: str, reason: str) -> None:
        del self._requests[name]
        sources = dump_files(self._context.scratch, name)
        with suppress(OSError):
            done_file(self._context.scratch, name).unlink(missing_ok=True)
        targets = {source: self._target(f"{name}-{backend}") for backend, source in sources.items()}
        if targets:
            self._kept_dumps.append(list(targets.values()))
            self._deliver(name, targets)
        else:
            self._answer(name, reason or "the process wrote nothing")

    def _target(self, name: str) -> Path:
        return flight_dir(self._run, self._attempt) / f"rank-{self._rank:05d}-{name}.pickle"

    def _deliver(self, name: str, targets: dict[Path, Path]) -> None:
        reason = None
        for source, target in targets.items():
            try:
                copy_file(source, target)
            except OSError as error:
                reason = f"cannot write {target.name}: {error.strerror or error}"
            self._remove(source)
        self._answer(name, reason)
        while len(self._kept_dumps) > MOST_DUMPS:
            for path in self._kept_dumps.pop(0):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _answer(self, name: str, reason: str | None, *, for_all: bool = False) -> None:
        control_answer = ControlAnswer(
            id=name,
            accepted=reason is None,
            reason=reason,
            attempt=self._attempt,
            ranks=None if for_all else [self._rank],
            answered_unix_ns=time.time_ns(),
        )
        with suppress(OSError):  # the requester sees that there is no answer
            answer(self._run, control_answer, rank=None if for_all else self._rank)

    def _collect_watchdog(self, *, last: bool = False) -> None:
        dump = None if self._watchdog is None else self._watchdog.complete(last=last)
        if dump is None:
            return
        # If a request was sent through torch's pipe, this is its dump.
        name = next((name for name, request in self._requests.items() if request.piped), None)
        if name is None:
            if self._rank == 0:
                self._ras.ask(self._attempt)
            self._keep(dump, self._target("watchdog-nccl"))
            return
        del self._requests[name]
        target = self._target(f"{name}-nccl")
        self._kept_dumps.append([target])
        self._deliver(name, {dump: target})

    def _keep(self, source: Path, target: Path) -> None:
        try:
            copy_file(source, target)
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._context.report(f"cannot keep the Flight Recorder's dump {source}: {error.strerror or error}")
            return
        self._remove(source)
        self._context.report(f"the Flight Recorder wrote a dump; it is in {target}")

    def _remove(self, source: Path) -> None:
        # A file at a path that the user set for torch stays.
        if is_flight_file(source):
            with suppress(OSError):
                source.unlink(missing_ok=True)

    def _submit(self, work: Callable[[], None]) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._run_worker, name="flight-dumps", daemon=True)
            self._worker.start()
        self._work.put(work)

    def _run_worker(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
                # The failed check never counts as finished, so the only further check is the one at the end.
                self._context.report(f"FlightDumps failed ({type(error).__name__}: {error}); recording goes on without it")


class WatchdogFile:
    """Dump file that torch's watchdog writes by itself, and detection of its completion.

    The default path is not checked, because ranks of the same number in other jobs write there too.
    """

    def __init__(self, path: Path, *, newer_than_ns: int) -> None:
        self._path = path
        # A name that the recorder chose is unique, so the file's age does not matter.
        self._newer_than = 0 if is_flight_file(path) else newer_than_ns
        self._last_state: tuple[int, int] | None = None
        self._reported_state: tuple[int, int] | None = None

    @classmethod
    def of_environment(cls, rank: int, *, newer_than_ns: int) -> WatchdogFile | None:
        """Return the file set for the rank's torch in the environment, which the helper shares. ``None``: none is set."""
        prefix = next((value for name in _TEMP_FILE if (value := os.environ.get(name))), None)
        return None if prefix is None else cls(Path(f"{prefix}{rank}"), newer_than_ns=newer_than_ns)

    def complete(self, *, last: bool = False) -> Path | None:
        """Return the file once, when it exists and no longer grows; with ``last`` even if it may still grow."""
        try:
            status = self._path.stat(follow_symlinks=False)
        except OSError:
            return None
        state = (status.st_size, status.st_mtime_ns)
        before, self._last_state = self._last_state, state
        # Torch may rewrite the file, as after a request through its pipe: another state is another dump.
        if state == self._reported_state or not status.st_size or status.st_mtime_ns < self._newer_than:
            return None
        if state != before and not last:
            return None
        self._reported_state = state
        return self._path


def write_to_pipe(rank: int) -> bool:
    """Request a dump through torch's own pipe (one per rank), if the user enabled it. Return whether torch may receive it."""
    stem = os.environ.get(_PIPE_FILE)
    if not stem:
        return False
    try:
        pipe = os.open(f"{stem}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
        os.write(pipe, b"dump\n")
    except OSError as error:
        return error.errno == errno.EAGAIN  # full of unread requests
    else:
        return True
    finally:
        os.close(pipe)
