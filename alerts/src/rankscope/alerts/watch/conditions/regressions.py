"""Regressions of a run: its step time and its throughput against its own past."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss, Subject
from rankscope.alerts.watch.conditions.step_past import StepPast
from rankscope.alerts.watcher_alerts import REGRESSION, THROUGHPUT, WatcherAlert
from rankscope.analysis.inference.change_points import change_points
from rankscope.base.text import factor, format_duration

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
    filled = np.where(np.isfinite(walls_us), walls_us, np.nanmedian(walls_us))
    since_us = np.cumsum(filled[::-1])[::-1]
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
    gpus: ConditionLoss | None

    def candidates(self, past: StepPast, *, at_least: float) -> list[Candidate] | None:
        """Return the alert about the step time, or else about the throughput, if that is worse by at least ``at_least``.

        ``None``: too few steps to decide.
        """
        if len(past) < ENOUGH:
            return None
        walls, steps = past.walls_us(), past.steps
        slowdown = find_slowdown(walls, walls, steps)
        if slowdown is not None and slowdown.rise >= at_least:
            before = format_duration(slowdown.before_us)
            change = f"Steps take {format_duration(slowdown.after_us)}, {slowdown.rise:.0%} longer than the {before} before"
            return [self._candidate(REGRESSION, change, slowdown)]
        work = past.us_per_work()
        slowdown = None if work is None else find_slowdown(work[1], walls, steps)
        if work is None or slowdown is None or slowdown.lost < at_least:
            return []
        change = f"{slowdown.lost:.0%} fewer {work[0]} a second than before, in steps that take no longer: there is less in each"
        return [self._candidate(THROUGHPUT, change, slowdown)]

    def _candidate(self, rule: WatcherAlert, change: str, slowdown: Slowdown) -> Candidate:
        loss = None
        if self.gpus is not None:
            per_hour = self.gpus.per_hour * slowdown.lost
            loss = msgspec.structs.replace(self.gpus, gpu_hours=per_hour * slowdown.since_s / 3600, per_hour=per_hour)
        return self.subject.candidate(
            rule,
            {
                "summary": f"{change}, since step {slowdown.step}.",
                "steps": f"{slowdown.step}-",
                "slowdown": factor(slowdown.after_us / slowdown.before_us),
                "evidence": f"lasting change at step {slowdown.step}, beyond the run's own noise (p <= 0.001)",
                "next": f"rankscope analyze {shlex.quote(str(self.run))}\n"
                f"See what changed at step {slowdown.step}: the script's own log, other jobs on the hosts, clocks of the GPUs",
            },
            loss=loss,
        )
