"""Captured windows of a run: consecutive profiled steps, found once per revision of their files, and their export."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.captured import step_records
from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.trace.possible import is_possible_breakdown
from rankscope.dashboards.data.cached_files import read_json
from rankscope.dashboards.data.progress import OnProgress, Progress
from rankscope.dashboards.words.inert import inert_record
from rankscope.runs.control import MAX_STEPS
from rankscope.runs.paths import attempt_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import KernelRecord, StepRecord

WINDOWS: Final = "windows.json"

CAPTURED: Final = ("windows", "collectives", "kernels", "plan", "window-")
"""Prefixes of the files that record windows; the last is that of raw traces, which may appear later than the others."""


class Window(msgspec.Struct, frozen=True):
    """Profiled steps from ``first`` to the one before ``past``."""

    attempt: int
    first: int
    past: int
    ranks: int
    """Number of ranks that profiled any of the steps."""
    start_unix_ns: int
    """Earliest start of the first step on any rank."""

    @property
    def steps(self) -> str:
        """Steps as text, such as ``step 20`` or ``steps 20 to 22``."""
        return f"step {self.first:,}" if self.past == self.first + 1 else f"steps {self.first:,} to {self.past - 1:,}"


class Windows(msgspec.Struct, frozen=True):
    """Windows of the last attempt that has any, ascending; empty if no attempt has one."""

    recorded: int
    """Number of ranks that left records in the attempt."""
    windows: list[Window] = []

    def chosen(self, first: int | None) -> Window | None:
        """Return the window that contains step ``first``, else the newest; ``None`` if there is no window."""
        named = (window_ for window_ in self.windows if first is not None and window_.first <= first < window_.past)
        return next(named, self.windows[-1] if self.windows else None)


def find_windows(run: Path, folder: Path, on_progress: OnProgress) -> None:
    """Write the list of windows of ``run`` into ``folder``. Raises ``RankscopeError`` and ``OSError``."""
    reader = RunReader(run)
    windows = Windows(0)
    for attempt in reversed(reader.attempts()):
        ranks = reader.ranks(attempt)
        steps_seen: dict[int, tuple[int, int]] = {}
        for at, rank in enumerate(ranks):
            on_progress(Progress("looking for captured windows", at, len(ranks)))
            steps = {row.step: row.start_unix_ns for row in reader.windows(attempt, rank) if is_possible_breakdown(row)}
            for step, start in steps.items():
                count, first = steps_seen.get(step, (0, start))
                steps_seen[step] = (count + 1, min(first, start))
        windows = Windows(len(ranks), _in_a_row(attempt, steps_seen))
        if steps_seen:
            break
    (folder / WINDOWS).write_bytes(msgspec.json.encode(windows))


def _in_a_row(attempt: int, steps_seen: dict[int, tuple[int, int]]) -> list[Window]:
    """Return windows of consecutive steps, each of at most ``MAX_STEPS``, the limit of a capture."""
    windows: list[Window] = []
    # Within consecutive steps, step minus position is constant.
    for _, group in itertools.groupby(enumerate(sorted(steps_seen)), key=lambda pair: pair[1] - pair[0]):
        steps = [step for _, step in group]
        for begin in range(0, len(steps), MAX_STEPS):
            part = steps[begin : begin + MAX_STEPS]
            windows.append(
                Window(attempt, part[0], part[-1] + 1, max(steps_seen[step][0] for step in part), steps_seen[part[0]][1])
            )
    return windows


def steps_of(run: Path, rank: int, window: Window) -> list[StepRecord]:
    """Return the step records of ``rank`` in ``window``. Raises ``RankscopeError``."""
    return step_records(RunReader(run, links=False), window.attempt, rank, range(window.first, window.past))


def kernels_of(run: Path, rank: int, window: Window) -> list[KernelRecord]:
    """Return the costliest kernels of ``rank`` in ``window``, their names made inert. Raises ``RankscopeError``."""
    records = RunReader(run, links=False).kernels(window.attempt, rank)
    return [inert_record(record) for record in records if window.first <= record.step < window.past]


def read_windows(folder: Path) -> Windows:
    """Read the windows that ``find_windows`` wrote. Raises ``InputError``."""
    return read_json(folder / WINDOWS, Windows, "the cached list of windows")


EXPORT: Final = "window.json.gz"
_QUICK: Final = 5
"""Compression level; higher levels make the file a few percent smaller in twice the time."""


def export_window(run: Path, attempt: int, steps: range, folder: Path, on_progress: OnProgress) -> None:
    """Write ``EXPORT``, without the verdict, which is about the whole run. Raises ``RankscopeError`` and ``OSError``."""

    def progress(activity: str, at: int, of: int) -> None:
        on_progress(Progress(activity, at, of))

    with (folder / EXPORT).open("wb") as file, gzip.GzipFile("", "wb", _QUICK, file, mtime=0) as packed:
        selection = Selection(StepRange(steps.start, steps.stop))
        export_perfetto([attempt_dir(run, attempt)], packed.write, selection=selection, verdict=False, progress=progress)
