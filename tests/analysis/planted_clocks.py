"""Collectives on clocks with a known offset, drift, wander or settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.analysis.collectives_by_hand import matched

from rankscope.analysis.collectives.arrivals import Arrivals
from rankscope.analysis.collectives.clock import Clocks
from rankscope.runs.records import CollectiveRecord

Floats = NDArray[np.float64]

START = 1_790_000_000_000_000_000
SECOND = 10**9


@dataclass(frozen=True)
class Planted:
    """Simulated clock: its lead in nanoseconds, as a function of the nanoseconds since ``START``."""

    offset: float = 0.0
    ppm: float = 0.0
    steps: Sequence[tuple[float, float]] = ()
    """(time, change) of each setting of the clock."""
    wander: Callable[[Floats], Floats] | None = None

    def ahead(self, time: Floats) -> Floats:
        total = self.offset + self.ppm * 1e-6 * time
        for when, by in self.steps:
            total = total + by * (time >= when)
        return total if self.wander is None else total + self.wander(time)


@dataclass(frozen=True)
class Job:
    """Ranks that meet in collectives, each with a clock of its own unless ``hosts`` assigns them."""

    clocks: Sequence[Planted]
    ends: Floats
    """End times of the collectives, ascending."""
    steps: NDArray[np.int64]
    """Step of each collective."""
    jitter: float = 3_000.0
    """Scale of the Laplace noise of the ends on each rank."""
    lag: Floats | None = None
    """[collectives, ranks]: delay of each rank after the first."""
    groups: Sequence[Sequence[int]] = ()
    """Groups that meet, in rotation; without groups all ranks meet."""
    on_cpu: bool = True
    seed: int = 0
    transfer: float = 500_000.0

    def matches(self) -> Arrivals:
        rng = np.random.default_rng(self.seed)
        ranks = len(self.clocks)
        lag = np.zeros((len(self.ends), ranks)) if self.lag is None else self.lag
        noise = rng.laplace(0, self.jitter, (len(self.ends), ranks)) if self.jitter else np.zeros((len(self.ends), ranks))
        ahead = np.column_stack([clock.ahead(self.ends) for clock in self.clocks])
        last = lag.max(axis=1, keepdims=True)
        end = START + np.rint(self.ends[:, None] + ahead + noise).astype(np.int64)
        arrive = START + np.rint(self.ends[:, None] + ahead - self.transfer - last + lag).astype(np.int64)
        collected = []
        index: dict[tuple[int, int], int] = {}
        for number, step in enumerate(self.steps.tolist()):
            group = number % max(1, len(self.groups))
            members = list(self.groups[group]) if self.groups else list(range(ranks))
            at = index[step, group] = index.get((step, group), -1) + 1
            records = {
                rank: CollectiveRecord(
                    step=step,
                    group=str(group),
                    group_ranks=members,
                    index=at,
                    op="all_reduce",
                    enqueue_unix_ns=int(arrive[number, rank]),
                    start_unix_ns=int(arrive[number, rank]),
                    end_unix_ns=int(end[number, rank]),
                    stream=None if self.on_cpu else 7,
                )
                for rank in members
            }
            collected.append(records)
        return matched(*collected)


def windows(count: int, collectives: int, *, gap: float, within: float, steps: int = 3) -> tuple[Floats, NDArray[np.int64]]:
    """Return ends and steps of ``count`` windows of ``steps`` steps: a window every ``apart`` ns, each ``within`` ns long."""
    inside = np.linspace(0, within, collectives)
    ends = (np.arange(count)[:, None] * gap + inside).ravel() + SECOND
    step = (np.arange(count)[:, None] * 1000 + np.arange(collectives) * steps // collectives).ravel()
    return ends, step


def apart(job: Job, clocks: Clocks) -> Floats:
    """Return [collectives, ranks]: deviation of each corrected time from the median of its collective."""
    corrected = np.empty((len(job.ends), len(job.clocks)))
    for rank, clock in enumerate(job.clocks):
        seen = START + np.rint(job.ends + clock.ahead(job.ends)).astype(np.int64)
        corrected[:, rank] = [clocks.correct(rank, item) - START for item in seen.tolist()]
    return corrected - np.median(corrected, axis=1, keepdims=True)
