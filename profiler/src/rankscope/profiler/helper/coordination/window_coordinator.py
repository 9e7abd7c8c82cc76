"""Coordinator of the windows of all ranks, in rank 0's helper."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.profiler.helper.coordination.reports import ReportReader
from rankscope.profiler.helper.coordination.window_client import WindowClient, plan_file
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.profiler.plan import REPORTS_PER_SECOND, Planner, RankReport
from rankscope.runs.control import ControlAnswer, ControlInbox, ControlRequest, answer
from rankscope.runs.paths import attempt_dir, reports_dir
from rankscope.runs.records import PlannedWindow
from rankscope.runs.small_files import append_whole


class WindowCoordinator:
    """Coordinator that reads the ranks' reports, answers requests, and appends the chosen windows to the plan file.

    All methods may block as long as the file system does.
    """

    def __init__(self, context: HelperContext) -> None:
        handover = context.handover
        self._context = context
        self._run_dir = Path(handover.settings.run_dir)
        self._attempt = context.info().attempt
        self._rank = handover.rank.rank
        folder = attempt_dir(self._run_dir, self._attempt)
        self._plan_file = plan_file(folder)
        self._planner = Planner.of(handover.settings, handover.rank.world_size, on_device=handover.rank.device_kind != "cpu")
        self._reports = ReportReader(reports_dir(self._run_dir, self._attempt), handover.rank.world_size, context.report)
        self._files_per_turn = math.ceil(self._planner.period * REPORTS_PER_SECOND)
        self._inbox = ControlInbox(self._run_dir, "capture", since_unix_ns=handover.attempt.start_unix_ns, report=context.report)
        self._requests: deque[ControlRequest] = deque()
        self._problems = ProblemLog(context.report, each_reason=False)
        self._begin(folder)

    def _begin(self, folder: Path) -> None:
        """Continue the plan of a killed predecessor, or create its file.

        It exists before the first announcement: a client of NFS may believe for a minute that a file is missing.
        """
        for window in WindowClient(folder, self._context.report).read():
            self._planner.resume(window.first, window.steps)
        if self._context.handover.rank.world_size > 1:
            with suppress(OSError):
                append_whole(self._plan_file, b"")

    def turn(self, report: RankReport | None) -> None:
        """Coordinate once. ``report``: that of this rank; ``None``: it has none any more."""
        self._receive(report)
        window = self._planner.due(time.monotonic(), time.time_ns())
        if window is not None:
            self._announce(window)
        self._requests.extend(self._inbox.pending())
        self._requests = deque(filter(self._inbox.still_wanted, self._requests))
        self._answer_requests()

    def _receive(self, report: RankReport | None) -> None:
        if report is None:
            self._planner.end(self._rank)
        else:
            self._planner.report(report, time.monotonic(), time.time_ns())
        for rank, other in self._reports.read(self._files_per_turn):
            if other is None:
                self._planner.end(rank)
            else:
                self._planner.report(other, time.monotonic(), time.time_ns())

    def _announce(self, window: PlannedWindow) -> str | None:
        """Append a window to the plan. Return the reason if that fails: then no rank profiles it."""
        try:
            append_whole(self._plan_file, msgspec.json.encode(window) + b"\n")
        except OSError as error:
            reason = f"the window cannot be announced in {self._plan_file}: {error.strerror or error}"
            # A run that was removed is reported by the writer of its records.
            if not isinstance(error, FileNotFoundError):
                self._problems.report(reason)
            return reason
        return None

    def _answer_requests(self) -> None:
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
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
                chosen = self._announce(chosen) or chosen
            try:
                answer(self._run_dir, _answer(request.id, chosen, self._attempt))
            except OSError as error:
                self._context.report(f"cannot answer the request {request.id}: {error.strerror or error}")


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
