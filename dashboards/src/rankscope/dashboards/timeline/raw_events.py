"""Raw traces that ranks kept of a window: events by stream or thread, and the use of each rank's time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.intervals import join
from rankscope.analysis.trace.work import COMMUNICATION, COMPUTE, Work, work_events
from rankscope.base.errors import InputError
from rankscope.dashboards.timeline.data import LaneEvents
from rankscope.dashboards.timeline.parts import ActivityKind, Numbers
from rankscope.dashboards.words.inert import MAX_TEXT, sanitize
from rankscope.runs.paths import rank_dir
from rankscope.runs.run_files import list_run_folder

MOST_RANKS: Final = 32
"""Most ranks whose raw traces are read, lowest ranks first: each takes a second or more."""
MOST_EVENTS: Final = 400_000
"""Most events kept of a window; beyond that the shortest are dropped."""
_LONGEST_NAME: Final = 120

_TRACE_FILE: Final = re.compile(r"window-(\d{1,18})\.json(?:\.gz)?")


@dataclass(slots=True)
class RawEvents:
    """Events read so far, with each rank's times on its own clock."""

    work: dict[int, Work] = field(default_factory=dict)
    """Rank to its compute, communication and copies, as merged sets."""
    problems: list[str] = field(default_factory=list)
    _lanes: dict[tuple[int, str], int] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _rows: list[Numbers] = field(default_factory=list)
    """[n, 6]: rank, lane, start, end, kind, name."""

    def read(self, rank: int, file: Path) -> None:
        """Read one trace of a rank; an unreadable trace is added to ``problems``."""
        try:
            trace = read_trace(file, detail=False, of_run=True)
        except InputError as error:
            self.problems.append(sanitize(str(error), MAX_TEXT))
            return
        trace_work = work_events(trace)
        if (before := self.work.get(rank)) is None:
            self.work[rank] = trace_work.work
        else:
            self.work[rank] = _both(before, trace_work.work)
        on_device = trace_work.is_on_device(trace)
        rows = np.empty((len(trace_work.rows), 6), np.int64)
        rows[:, 0], rows[:, 2], rows[:, 3] = rank, trace_work.start, trace_work.end
        rows[:, 4] = np.select(
            [trace_work.kind == COMPUTE, trace_work.kind == COMMUNICATION],
            [ActivityKind.COMPUTE, ActivityKind.COMMUNICATION],
            ActivityKind.COPY,
        )
        for at, (row, device) in enumerate(zip(trace_work.rows.tolist(), on_device.tolist(), strict=True)):
            lane = f"GPU {trace.device[row]} stream {trace.stream[row]}" if device else f"thread {trace.thread[row]}"
            rows[at, 1] = self._lanes.setdefault((rank, lane), len(self._lanes))
            rows[at, 5] = self._names.setdefault(trace.names[trace.name[row]][:_LONGEST_NAME], len(self._names))
        self._rows.append(rows)

    @property
    def names(self) -> list[str]:
        """Names of events, in the order of their numbers."""
        return list(self._names)

    @property
    def lanes(self) -> list[tuple[int, str]]:
        """Rank and name of each lane."""
        return list(self._lanes)

    def events(self, offset_of: dict[int, int]) -> LaneEvents:
        """Return events of the ranks in ``offset_of``, minus their offsets in ns; ascending by lane and start."""
        rows = np.concatenate([np.empty((0, 6), np.int64), *self._rows])
        rows = rows[np.isin(rows[:, 0], list(offset_of))]
        if len(rows) > MOST_EVENTS:
            lengths = rows[:, 3] - rows[:, 2]
            rows = rows[np.argsort(-lengths, kind="stable")[:MOST_EVENTS]]
            self.problems.append(f"the shortest of the raw events: {MOST_EVENTS:,} are kept")
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1]))]
        offsets = np.array([offset_of[rank] for rank in rows[:, 0].tolist()], dtype=np.int64)
        return LaneEvents(rows[:, 1], rows[:, 2] - offsets, rows[:, 3] - offsets, rows[:, 4], rows[:, 5])


def _both(first: Work, right: Work) -> Work:
    return Work(
        join(first.compute, right.compute), join(first.communication, right.communication), join(first.copies, right.copies)
    )


def kept_files(run: Path, attempt: int, ranks: Iterable[int], steps: range) -> Iterator[tuple[int, Path]]:
    """Yield rank and raw trace of windows that begin in ``steps``, for at most ``MOST_RANKS`` ranks."""
    having = 0
    for rank in ranks:
        folder = rank_dir(run, attempt, rank) / "traces"
        try:
            names = [
                name for name in list_run_folder(folder) if (is_kept := _TRACE_FILE.fullmatch(name)) and int(is_kept[1]) in steps
            ]
        except OSError:
            continue  # none was kept, or it is a link
        if names:
            having += 1
            yield from ((rank, folder / name) for name in sorted(names))
        if having == MOST_RANKS:
            return
