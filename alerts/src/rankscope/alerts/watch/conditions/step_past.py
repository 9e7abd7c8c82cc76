"""Past of a run: the steps of one rank in the current attempt, 30 bytes each. Collectives equalise the step times of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.liveness import LONG_TAGS
from rankscope.analysis.evidence.step_table.rank_columns import RankColumns
from rankscope.analysis.evidence.step_table.rank_files import load_ranks
from rankscope.runs.reader import RunReader

USUAL_STEPS: Final = 200
"""Number of recent steps whose median is the usual step time."""
LONG_STEPS: Final = 20_000
"""Number of recent steps to search for regularly long steps: checkpoints and evaluations."""
RARE_TIMES: Final = 10.0
"""Multiple of the median beyond which a step counts as an exception, such as a temporary hang."""

_GROWTH: Final = 2
_START: Final = 1024


class _GrowingSeries:
    """Growable array."""

    def __init__(self, kind: type[np.generic]) -> None:
        self._room = np.empty(_START, kind)
        self.count = 0

    def append(self, values: NDArray[np.generic]) -> None:
        needed = self.count + len(values)
        if needed > len(self._room):
            room = np.empty(_GROWTH * needed, self._room.dtype)
            room[: self.count] = self._room[: self.count]
            self._room = room
        self._room[self.count : needed] = values
        self.count = needed

    @property
    def values(self) -> NDArray[np.generic]:
        return self._room[: self.count]


class StepPast:
    """Steps of one rank in the order in which they were recorded, fed by ``OnlineAnalysis``."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._rank: int | None = None
        self._walls = _GrowingSeries(np.float32)
        self._usable = _GrowingSeries(np.bool_)
        self._tagged = _GrowingSeries(np.bool_)
        self._starts = _GrowingSeries(np.int64)
        self._steps = _GrowingSeries(np.int64)
        self._work = {name: _GrowingSeries(np.float32) for name in ("tokens", "samples")}

    def begin(self, attempt: int) -> None:
        """Start over for a new attempt, whose ranks and work may differ."""
        del attempt
        self._begin()

    def has_ranks(self, ranks: Sequence[int]) -> None:
        """Do nothing: the first rank with steps is the one that is kept."""

    def needs(self, rank: int) -> bool:
        """Return whether ``rank`` is the one that is kept, or may be."""
        return self._rank in (None, rank)

    def add(self, rank: int, columns: RankColumns) -> None:
        """Append the steps of a rank; ranks other than the first with steps are ignored."""
        if self._rank is None and len(columns.step):
            self._rank = rank
        if rank != self._rank:
            return
        unknown = np.full(len(columns.step), np.nan, np.float32)
        tagged = np.zeros(len(columns.step), np.bool_)
        for tag in LONG_TAGS:
            if tag in columns.tags:
                tagged[columns.tags[tag]] = True
        self._steps.append(columns.step)
        self._starts.append(columns.start)
        self._walls.append(columns.values.get("wall_us", unknown))
        self._usable.append(~columns.profiled & ~tagged)
        self._tagged.append(tagged)
        for name, column in self._work.items():
            column.append(columns.values.get(name, unknown))

    def __len__(self) -> int:
        return self._walls.count

    @property
    def steps(self) -> NDArray[np.int64]:
        """Step numbers, [steps]."""
        return self._steps.values.astype(np.int64, copy=False)

    def walls_us(self) -> NDArray[np.float64]:
        """Step times in microseconds, [steps]; NaN for steps with the profiler, a checkpoint or an evaluation."""
        walls = self._walls.values.astype(np.float64)
        walls[~self._usable.values.astype(np.bool_)] = np.nan
        return walls

    def us_per_work(self) -> tuple[str, NDArray[np.float64]] | None:
        """Unit of work (``tokens``, or else ``samples``) and microseconds per unit, [steps]; ``None``: neither is recorded."""
        walls = self.walls_us()
        for name, column in self._work.items():
            work = column.values.astype(np.float64)
            if (np.isfinite(work) & (work > 0)).any():
                work[~(work > 0)] = np.nan
                return name, walls / work
        return None

    def usual_us(self) -> float | None:
        """Median time of the last ``USUAL_STEPS`` steps in microseconds; ``None`` before the first."""
        recent = self._walls.values[-USUAL_STEPS:].astype(np.float64)
        recent = recent[np.isfinite(recent)]
        return float(np.median(recent)) if len(recent) else None

    def rare_share(self, steps: int | None = None) -> float:
        """Share of the time of the last ``steps`` (``None``: all) that very long steps took (over ``RARE_TIMES`` medians)."""
        recent = self._walls.values[-(steps or 0) :].astype(np.float64)
        recent = recent[np.isfinite(recent)]
        total_time = float(recent.sum())
        return float(recent[recent > RARE_TIMES * np.median(recent)].sum()) / total_time if total_time > 0 else 0.0

    def longest_us(self) -> float:
        """Longest time between two steps that may recur: that of a tagged step, or the second longest of all, in microseconds."""
        starts = self._starts.values[-LONG_STEPS:].astype(np.int64)
        if len(starts) < 2:
            return 0.0
        gaps = np.diff(starts) / 1e3
        tagged = gaps[self._tagged.values[-LONG_STEPS:][:-1].astype(np.bool_)]
        others = np.partition(gaps, -2)[-2] if len(gaps) > 1 else 0.0
        return max(0.0, float(others), float(tagged.max(initial=0.0)))


def read_past(run: Path) -> StepPast:
    """Read the past of a run's last attempt from its files. Raises ``InputError``."""
    past = StepPast()
    reader = RunReader(run)
    for attempt in reader.attempts()[-1:]:
        for rank in reader.ranks(attempt):
            if len(past):
                break
            for _, columns in load_ranks(reader, attempt, [rank]):
                past.add(rank, columns)
    return past
