"""Coordination on rank 0: choose windows for all ranks, answer requests, and record the announced windows in a file."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.handover import Hello
from rankscope.profiler.helper.coordination.sidestore import (
    MAX_WINDOWS,
    SideServer,
    SideWindow,
    address_file,
    concerns,
    side_window,
)
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.profiler.plan import Planner, RankReport
from rankscope.runs.control import ControlAnswer, ControlRequest, Inbox, answer
from rankscope.runs.paths import attempt_dir, segment
from rankscope.runs.records import PlannedWindow
from rankscope.runs.writer import append_whole

_END_SECONDS: Final = 2.0


class Planning:
    """Thread of rank 0 that chooses windows, answers requests and the other ranks, and records announced windows in a file."""

    def __init__(self, context: HelperContext, hear: Callable[[Iterable[SideWindow]], None]) -> None:
        hello = context.hello
        self._context = context
        self._hear = hear
        self._run_dir = Path(hello.settings.run_dir)
        self._attempt = context.info().attempt
        self._folder = attempt_dir(self._run_dir, self._attempt)
        self._planner = Planner.of(hello.settings, hello.rank.world_size)
        self._lock = threading.Lock()
        self._planned: deque[PlannedWindow] = deque(maxlen=MAX_WINDOWS)
        self._requests: deque[ControlRequest] = deque()
        self._unwritten: deque[PlannedWindow] = deque()
        self._stop = threading.Event()
        self._server: SideServer | None = None
        self._thread = threading.Thread(target=self._work, name="planning", daemon=True)
        self.report: RankReport | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, without waiting long for a slow disk."""
        self._stop.set()
        self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        try:
            self._serve_and_plan()
        except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
            self._context.report(f"planning failed ({type(error).__name__}: {error}); there are no more windows on all ranks")

    def _serve_and_plan(self) -> None:
        hello = self._context.hello
        inbox = Inbox(self._run_dir, "capture", since_unix_ns=hello.attempt.start_unix_ns, report=self._context.report)
        try:
            self._serve()
            while not self._stop.wait(self._planner.period):
                self._plan()
                self._requests.extend(inbox.pending())
                self._requests = deque(filter(inbox.still_wanted, self._requests))
                self._answer_requests()
                self._write_down()
        finally:
            if self._server is not None:
                self._server.close()
                with suppress(OSError):
                    address_file(self._folder).unlink(missing_ok=True)

    def _serve(self) -> None:
        hello = self._context.hello
        if hello.rank.world_size == 1:
            return
        try:
            self._server = SideServer(self._tell, local=_on_one_host(hello))
        except OSError:
            return  # all ranks then read the file
        self._server.start()
        with suppress(OSError):
            self._server.address().write(address_file(self._folder))

    def _tell(self, report: RankReport) -> list[SideWindow]:
        """Store a report and return the upcoming windows of its rank. Runs on the server's thread."""
        with self._lock:
            self._planner.report(report, time.monotonic())
            return [side_window(one) for one in self._planned if one.first > report.step and concerns(one, report.rank)]

    def _plan(self) -> None:
        now = time.monotonic()
        with self._lock:
            if self.report is not None:
                self._planner.report(self.report, now)
            window = self._planner.due(now, time.time_ns())
        if window is not None:
            self._publish(window)

    def _publish(self, window: PlannedWindow) -> None:
        with self._lock:
            self._planned.append(window)
        if concerns(window, self._context.hello.rank.rank):
            self._hear([side_window(window)])
        self._unwritten.append(window)

    def _answer_requests(self) -> None:
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            with self._lock:
                chosen = self._planner.capture(
                    request.id,
                    steps=request.steps,
                    ranks=request.ranks,
                    keep_trace=request.keep_trace,
                    now=time.monotonic(),
                    unix_ns=time.time_ns(),
                )
            if chosen is None:
                self._requests.append(request)
                continue
            if isinstance(chosen, PlannedWindow):
                self._publish(chosen)
            try:
                answer(self._run_dir, _answer(request.id, chosen, self._attempt))
            except OSError as error:
                self._context.report(f"cannot answer the request {request.id}: {error.strerror or error}")

    def _write_down(self) -> None:
        if not self._unwritten:
            return
        lines = b"".join(msgspec.json.encode(window) + b"\n" for window in self._unwritten)
        # The folder is not created here: if it is missing, the run was removed. Unwritten lines are retried later.
        with suppress(OSError):
            append_whole(segment(self._folder, "plan", 0), lines)
            self._unwritten.clear()


def _on_one_host(hello: Hello) -> bool:
    here = os.environ.get("LOCAL_WORLD_SIZE")
    if here is None:
        nodes, tasks = (os.environ.get(f"SLURM_STEP_NUM_{what}") for what in ("NODES", "TASKS"))
        return nodes == "1" and tasks == str(hello.rank.world_size)
    return here == str(hello.rank.world_size)


def _answer(request: str, chosen: PlannedWindow | str, attempt: int) -> ControlAnswer:
    if isinstance(chosen, str):
        return ControlAnswer(id=request, accepted=False, reason=chosen, attempt=attempt, answered_unix_ns=time.time_ns())
    return ControlAnswer(
        id=request,
        accepted=True,
        attempt=attempt,
        first_step=chosen.first,
        last_step=chosen.first + chosen.steps - 1,
        ranks=chosen.ranks,
        answered_unix_ns=time.time_ns(),
    )
