"""Which captured windows a run has: steps in a row that were profiled, found once per state of the files that tell of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.captured import step_records
from rankscope.analysis.possible import is_possible_breakdown
from rankscope.dashboards.data.progress import Progress, Tell
from rankscope.dashboards.data.whole import read_json
from rankscope.runs.control import MAX_STEPS
from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepRecord

WINDOWS: Final = "windows.json"

CAPTURED: Final = ("windows", "collectives", "plan", "window-")
"""How the names of files begin that tell of windows; the last are raw traces, which may be there later than the others."""


class Window(msgspec.Struct, frozen=True):
    """Profiled steps from ``first`` to the one before ``past``."""

    attempt: int
    first: int
    past: int
    ranks: int
    """Ranks that have profiled any of them."""
    start_unix_ns: int
    """Of its first step, as the rank that came first saw it."""

    @property
    def steps(self) -> str:
        """``step 20``, ``steps 20 to 22``."""
        return f"step {self.first:,}" if self.past == self.first + 1 else f"steps {self.first:,} to {self.past - 1:,}"


class Windows(msgspec.Struct, frozen=True):
    """Of the last attempt that has any, ascending; of a run without one empty."""

    recorded: int
    """Ranks that left records in the attempt."""
    windows: list[Window] = []

    def chosen(self, first: int | None) -> Window | None:
        """The window that has step ``first`` in it, else the newest; ``None`` where there is none."""
        named = (one for one in self.windows if first is not None and one.first <= first < one.past)
        return next(named, self.windows[-1] if self.windows else None)


def find_windows(run: Path, folder: Path, tell: Tell) -> None:
    """Write what windows ``run`` has into ``folder``. Raises ``RankscopeError`` and ``OSError``."""
    reader = RunReader(run)
    found = Windows(0)
    for attempt in reversed(reader.attempts()):
        ranks = reader.ranks(attempt)
        seen: dict[int, tuple[int, int]] = {}
        for done, rank in enumerate(ranks):
            tell(Progress("looking for captured windows", done, len(ranks)))
            steps = {row.step: row.start_unix_ns for row in reader.windows(attempt, rank) if is_possible_breakdown(row)}
            for step, start in steps.items():
                count, first = seen.get(step, (0, start))
                seen[step] = (count + 1, min(first, start))
        found = Windows(len(ranks), _in_a_row(attempt, seen))
        if seen:
            break
    (folder / WINDOWS).write_bytes(msgspec.json.encode(found))


def _in_a_row(attempt: int, seen: dict[int, tuple[int, int]]) -> list[Window]:
    """Steps that follow each other; where all of a run was profiled, not more than a capture can have."""
    found: list[Window] = []
    # What stays the same as both count up is in a row.
    for _, group in itertools.groupby(enumerate(sorted(seen)), key=lambda pair: pair[1] - pair[0]):
        steps = [step for _, step in group]
        for begin in range(0, len(steps), MAX_STEPS):
            part = steps[begin : begin + MAX_STEPS]
            found.append(Window(attempt, part[0], part[-1] + 1, max(seen[step][0] for step in part), seen[part[0]][1]))
    return found


def steps_of(run: Path, rank: int, window: Window) -> list[StepRecord]:
    """Step records of ``rank`` in ``window``. Raises ``RankscopeError``."""
    return step_records(RunReader(run), window.attempt, rank, range(window.first, window.past))


def read_windows(folder: Path) -> Windows:
    """What ``find_windows`` wrote. Raises ``InputError``."""
    return read_json(folder / WINDOWS, Windows, "the cached list of windows")
