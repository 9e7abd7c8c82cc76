"""Reports of the ranks for rank 0's helper, ``reports/RRRRR.json`` in an attempt's folder.

They are rewritten rarely, because all ranks of a job do so on one file system: about twice a minute, and after a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.base.regular_files import open_regular
from rankscope.base.text import one_line
from rankscope.profiler.plan import REPORTS_PER_SECOND, RankReport, report_seconds
from rankscope.runs.small_files import write_shared

_MAX_BYTES: Final = 4096
_GOLDEN_RATIO: Final = 0.618034
"""The fractions of its multiples are spread evenly."""
_SOONEST_SECONDS: Final = 3.0
"""Seconds from a report to one with the cost of a new window."""


def report_file(folder: Path, rank: int) -> Path:
    """Return the path of the report of ``rank`` in the folder of reports."""
    return folder / f"{rank:05d}.json"


class ReportWriter:
    """Writer of one rank's report. Creates ``folder``, but not its parent. No method raises for disk errors.

    ``after_windows``: the cost of a window is reported soon, because the next one waits for it.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, *, after_windows: bool) -> None:
        self._folder = folder
        self._path = report_file(folder, rank)
        self._interval = report_seconds(world_size)
        # Ranks that begin at the same time must not go on writing at the same time.
        self._first_interval = self._interval * (rank * _GOLDEN_RATIO % 1)
        # In a large job all ranks have new costs at once: they are in the next regular report.
        self._after_window = max(_SOONEST_SECONDS, world_size / REPORTS_PER_SECOND) if after_windows else self._interval
        self._written_at: float | None = None
        self._removed = False
        self._due = 0.0
        self._windows = 0
        self._cost_changed_step: int | None = None

    def offer(self, report: RankReport, windows: int, now: float) -> None:
        """Write ``report`` if it is time to. ``windows``: number of windows that the rank has recorded."""
        if windows != self._windows:
            self._windows, self._cost_changed_step = windows, report.step
        if not self._is_due(report, now):
            return
        self._due = now + (self._first_interval if self._written_at is None else self._interval)
        self._written_at, self._cost_changed_step, self._removed = now, None, False
        # Errors are not reported here: the writer of the records meets and reports the same ones.
        with suppress(OSError):
            if self._folder.parent.is_dir():
                write_shared(self._path, msgspec.json.encode(report) + b"\n")

    def _is_due(self, report: RankReport, now: float) -> bool:
        if self._written_at is None:
            return report.step_us is not None
        # The planner wants a report from after the window: two steps later it surely has the whole cost.
        changed = self._cost_changed_step is not None and report.step > self._cost_changed_step + 1
        return now >= self._due or (changed and now >= self._written_at + self._after_window)

    def remove(self) -> None:
        """Remove the report, because the rank has ended or is no longer recorded, and the folder with the last one."""
        if self._removed:
            return
        self._written_at, self._removed = None, True
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            self._folder.rmdir()


class ReportReader:
    """Reader of the reports of ranks 1 to ``world_size - 1``. The first unusable file is reported through ``report``."""

    def __init__(self, folder: Path, world_size: int, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._world_size = world_size
        self._problems = ProblemLog(report, each_reason=False)
        self._next = 1
        self._present: set[int] = set()
        self._decoder = msgspec.json.Decoder(RankReport)

    def read(self, files: int) -> Iterator[tuple[int, RankReport | None]]:
        """Read the next ``files`` reports, in turn. Yield the rank of each, and ``None`` for a report that was removed."""
        for _ in range(min(files, self._world_size - 1)):
            rank, self._next = self._next, self._next % (self._world_size - 1) + 1
            try:
                report = self._read(rank)
            except FileNotFoundError:
                if rank in self._present:
                    self._present.remove(rank)
                    yield rank, None
            except (OSError, ValueError, RecursionError) as error:
                self._complain(rank, error)
            else:
                self._present.add(rank)
                yield rank, report

    def _read(self, rank: int) -> RankReport:
        with open_regular(report_file(self._folder, rank), links=False) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        report = self._decoder.decode(data)
        if report.rank != rank:
            raise ValueError(f"it is a report of rank {report.rank}")
        return report

    def _complain(self, rank: int, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self._problems.report(f"{report_file(self._folder, rank)} is ignored: {one_line(reason[:200])}")
