"""Flight Recorder dumps of stalled runs: existing ones, and those that are requested from the ranks once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.analysis.hang.hang_result import HangReport
from rankscope.base.errors import RankscopeError
from rankscope.runs.control import new_request, post, read_answer
from rankscope.runs.control_names import answer_name
from rankscope.runs.paths import control_dir, flight_dir

WAIT_S: Final = 30.0
"""Time to wait for dumps after a request: ranks have 20 s to answer."""
AGAIN_S: Final = 600.0
"""Shortest time between two requests to a run."""

_Files = frozenset[tuple[str, int, int]]


@dataclass(slots=True)
class _StalledRun:
    request: str | None = None
    requested_s: float = 0.0
    refused: str = ""
    """Reason why no request could be left in the run."""
    files: _Files = frozenset()
    read: _Files = frozenset()
    report: HangReport | None = None


class Dumps:
    """Flight Recorder dumps of stalled runs.

    ``diagnose(run, fresh)`` finds the culprit in the dumps of a run, or returns ``None``. ``fresh``: no rank has made a
    step since they were taken. ``ask``: leave requests for dumps in runs.
    """

    def __init__(
        self,
        diagnose: Callable[[Path, bool], HangReport | None],
        *,
        ask: bool,
        report: Callable[[str], None],
    ) -> None:
        self._diagnose = diagnose
        self._ask = ask
        self._report = report
        self._stalled: dict[Path, _StalledRun] = {}
        self._last_request_s: dict[Path, float] = {}

    def look(self, run: Path, attempt: int, ranks: list[int], now_s: float) -> tuple[HangReport | None, str | None]:
        """Return the report on the culprit, and why there is none.

        The reason is ``None`` while dumps may still arrive, and empty with a report.
        """
        stalled = self._stalled.setdefault(run, _StalledRun())
        too_soon = now_s - self._last_request_s.get(run, -AGAIN_S) < AGAIN_S
        if self._ask and not too_soon and stalled.request is None and not stalled.refused:
            self._leave_request(run, stalled, now_s)
        files = _files(flight_dir(run, attempt))
        settled = files == stalled.files
        stalled.files = files
        if settled and files and files != stalled.read:
            stalled.read = files
            stalled.report = self._read(run, stalled) or stalled.report
        request = stalled.request
        # Judged too early, ranks whose dumps are still to come would be blamed.
        complete = request is None or len(_answered(run, request, ranks)) == len(ranks) or read_answer(run, request) is not None
        waiting = not complete and now_s - stalled.requested_s < WAIT_S
        if waiting or not settled:
            return None, None
        if stalled.report is not None:
            return stalled.report, ""
        if request is None:
            requested_before = "dumps were requested a short while ago" if self._ask and too_soon else ""
            return None, stalled.refused or requested_before or "no Flight Recorder dump in the run names the culprit"
        return None, "Flight Recorder dumps were requested, and none that arrived names the culprit"

    def answering_ranks(self, run: Path, ranks: Iterable[int]) -> set[int] | None:
        """Return which of ``ranks`` answered the request; ``None`` if there was none, or one answer covers all ranks."""
        stalled = self._stalled.get(run)
        request = None if stalled is None else stalled.request
        if request is None or read_answer(run, request) is not None:
            return None
        return _answered(run, request, ranks)

    def over(self, run: Path) -> None:
        """Forget a run that makes progress again or has ended."""
        self._stalled.pop(run, None)

    def _leave_request(self, run: Path, stalled: _StalledRun, now_s: float) -> None:
        request = new_request("dump", note="no rank finishes a step")
        try:
            post(run, request)
        except OSError as error:
            stalled.refused = f"dumps cannot be requested: {error.strerror or error}"
            self._report(f"{run}: {stalled.refused}")
            return
        stalled.request, stalled.requested_s = request.id, now_s
        self._last_request_s[run] = now_s

    def _read(self, run: Path, stalled: _StalledRun) -> HangReport | None:
        fresh = stalled.request is not None and any(stalled.request in name for name, _, _ in stalled.files)
        try:
            return self._diagnose(run, fresh)
        except RankscopeError as error:
            self._report(f"{run}: the dumps cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - a bug in reading dumps must not suppress the alert
            self._report(f"{run}: the dumps cannot be read: {type(error).__name__}: {error}")
        return None


def _answered(run: Path, request: str, ranks: Iterable[int]) -> set[int]:
    """Return which of ``ranks`` left an answer of their own."""
    answers: set[str] = set()
    with suppress(OSError):
        answers = {entry.name for entry in (control_dir(run) / answer_name(request, 0)).parent.iterdir()}
    return {rank for rank in ranks if Path(answer_name(request, rank)).name in answers}


def _files(folder: Path) -> _Files:
    files: set[tuple[str, int, int]] = set()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                files.add((entry.name, status.st_size, status.st_mtime_ns))
    return frozenset(files)
