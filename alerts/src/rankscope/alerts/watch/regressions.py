"""Regressions of a run: its step time and its throughput against its own past.

The past is that of one rank in the current attempt: collectives equalise the step times of ranks. It takes 30 bytes per step.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.alerts.owners import REGRESSION, THROUGHPUT, OwnedAlert
from rankscope.alerts.watch.candidate import Candidate, Loss, Subject
from rankscope.analysis.evidence.liveness import LONG_TAGS
from rankscope.analysis.evidence.rank_columns import RankColumns
from rankscope.analysis.evidence.rank_files import load_ranks
from rankscope.analysis.inference.change_points import change_points
from rankscope.base.text import factor, format_duration
from rankscope.runs.reader import RunReader

USUAL_STEPS: Final = 200
"""Number of recent steps whose median is the usual step time."""
LONG_STEPS: Final = 20_000
"""Number of recent steps to search for regularly long steps: checkpoints and evaluations."""
RARE_TIMES: Final = 10.0
"""Multiple of the median beyond which a step counts as an exception, such as a temporary hang."""

_GROWTH: Final = 2
_START: Final = 1024


class _Column:
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
        self._walls = _Column(np.float32)
        self._usable = _Column(np.bool_)
        self._tagged = _Column(np.bool_)
        self._starts = _Column(np.int64)
        self._steps = _Column(np.int64)
        self._work = {name: _Column(np.float32) for name in ("tokens", "samples")}

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
        whole = float(recent.sum())
        return float(recent[recent > RARE_TIMES * np.median(recent)].sum()) / whole if whole > 0 else 0.0

    def longest_us(self) -> float:
        """Longest time between two steps that may recur: that of a tagged step, or the second longest of all, in microseconds."""
        starts = self._starts.values[-LONG_STEPS:].astype(np.int64)
        if len(starts) < 2:
            return 0.0
        gaps = np.diff(starts) / 1e3
        known = gaps[self._tagged.values[-LONG_STEPS:][:-1].astype(np.bool_)]
        others = np.partition(gaps, -2)[-2] if len(gaps) > 1 else 0.0
        return max(0.0, float(others), float(known.max(initial=0.0)))


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


REMEMBERED_S: Final = 6 * 3600.0
"""Age at which a slowdown becomes the normal state of the run."""
LEAST_STEPS: Final = 20
"""Fewest steps before and after a change."""
ENOUGH: Final = 64
"""Fewest steps for any result."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A lasting slowdown that began at ``step``."""

    step: int
    before_us: float
    after_us: float
    since_s: float
    """Seconds since the change, as the sum of the step times."""

    @property
    def rise(self) -> float:
        """Increase as a share of the time before."""
        return self.after_us / self.before_us - 1

    @property
    def lost(self) -> float:
        """Share of the current time that the slowdown costs."""
        return 1 - self.before_us / self.after_us


def find_slowdown(
    values_us: NDArray[np.floating[Any]], walls_us: NDArray[np.floating[Any]], steps: NDArray[np.int64]
) -> Slowdown | None:
    """Find a lasting rise of ``values_us`` [steps] over their lowest recent level; ``None`` without one."""
    changes = change_points(values_us)
    edges = [0, *(change.at for change in changes), len(values_us)]
    lasting = [last - first >= LEAST_STEPS for first, last in pairwise(edges)]
    if not changes or not lasting[-1] or not np.isfinite(walls_us).any():
        return None
    known = np.where(np.isfinite(walls_us), walls_us, np.nanmedian(walls_us))
    since_us = np.cumsum(known[::-1])[::-1]
    pasts = [
        change
        for change, lasted in zip(changes, lasting[:-1], strict=True)
        if lasted and change.before > 0 and since_us[change.at] <= REMEMBERED_S * 1e6
    ]
    lowest = min(pasts, key=lambda change: change.before, default=None)
    now_us = changes[-1].after
    if lowest is None or now_us <= lowest.before:
        return None
    return Slowdown(int(steps[lowest.at]), lowest.before, now_us, float(since_us[lowest.at]) / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regressions:
    """Regressions of one run. ``gpus``: hourly cost of all its GPUs; ``None`` for a run without GPUs or a price."""

    run: Path
    subject: Subject
    gpus: Loss | None

    def found(self, past: StepPast, *, at_least: float) -> list[Candidate] | None:
        """Return the alert about the step time, or else about the throughput, if that is worse by at least ``at_least``.

        ``None``: too few steps to decide.
        """
        if len(past) < ENOUGH:
            return None
        walls, steps = past.walls_us(), past.steps
        found = find_slowdown(walls, walls, steps)
        if found is not None and found.rise >= at_least:
            before = format_duration(found.before_us)
            what = f"Steps take {format_duration(found.after_us)}, {found.rise:.0%} longer than the {before} before"
            return [self._candidate(REGRESSION, what, found)]
        work = past.us_per_work()
        found = None if work is None else find_slowdown(work[1], walls, steps)
        if work is None or found is None or found.lost < at_least:
            return []
        what = f"{found.lost:.0%} fewer {work[0]} a second than before, in steps that take no longer: there is less in each"
        return [self._candidate(THROUGHPUT, what, found)]

    def _candidate(self, rule: OwnedAlert, what: str, found: Slowdown) -> Candidate:
        loss = None
        if self.gpus is not None:
            per_hour = self.gpus.per_hour * found.lost
            loss = msgspec.structs.replace(self.gpus, gpu_hours=per_hour * found.since_s / 3600, per_hour=per_hour)
        return self.subject.candidate(
            rule,
            {
                "summary": f"{what}, since step {found.step}.",
                "steps": f"{found.step}-",
                "slowdown": factor(found.after_us / found.before_us),
                "evidence": f"lasting change at step {found.step}, beyond the run's own noise (p <= 0.001)",
                "next": f"rankscope analyze {shlex.quote(str(self.run))}\n"
                f"See what changed at step {found.step}: the script's own log, other jobs on the hosts, clocks of the GPUs",
            },
            loss=loss,
        )
