"""Reader of the windows that rank 0's helper announces, ``plan-000000.jsonl`` in an attempt's folder."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.base.regular_files import open_regular
from rankscope.base.text import one_line
from rankscope.profiler.plan import MAX_STEPS
from rankscope.runs.paths import segment
from rankscope.runs.segments import UNDECODABLE

MAX_WINDOWS: Final = 8
"""Largest number of windows in one reading; no more are planned ahead."""
_MAX_READ: Final = 1 << 20


class AnnouncedWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """``PlannedWindow`` as a rank reads it. Its fields are bounded, because other users may be able to write the file."""

    first: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)]
    reason: Literal["schedule", "capture"] = "schedule"
    ranks: list[int] | None = None
    keep_trace: bool = False


def plan_file(attempt: Path) -> Path:
    """Return the path of the announced windows of an attempt."""
    return segment(attempt, "plan", 0)


class WindowClient:
    """Reader of the announced windows in the folder ``attempt``, from the first one on.

    The first line that is no window, and the first other reason for which the file cannot be read, go to ``report``.
    """

    def __init__(self, attempt: Path, report: Callable[[str], None]) -> None:
        self._path = plan_file(attempt)
        self._problems = ProblemLog(report, each_reason=False)
        self._offset = 0
        self._decoder = msgspec.json.Decoder(AnnouncedWindow)

    def read(self) -> list[AnnouncedWindow]:
        """Return the windows announced since the last call: the last ``MAX_WINDOWS`` of them, from whole lines."""
        try:
            # Opened anew each time: only then does a client of NFS look for what was added.
            with open_regular(self._path, links=False) as file:
                file.seek(self._offset)
                data = file.read(_MAX_READ)
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno != errno.ESTALE:
                self._complain("it", error.strerror or str(error))
            return []
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete_lines) or (len(data) if len(data) == _MAX_READ else 0)
        windows = deque[AnnouncedWindow](maxlen=MAX_WINDOWS)
        for line in complete_lines.splitlines():
            try:
                windows.append(self._decoder.decode(line))
            except UNDECODABLE as error:
                self._complain("a line", str(error))
        return list(windows)

    def _complain(self, part: str, reason: str) -> None:
        self._problems.report(f"{self._path}: {part} is ignored: {one_line(reason[:200])}")
