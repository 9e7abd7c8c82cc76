"""A first look through a run: how much each step would take in the file, and when it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rankscope.analysis.perfetto import collective_tracks, step_tracks
from rankscope.analysis.perfetto.microseconds import HORIZON_NS
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.possible import LAST_STEP, is_possible_step
from rankscope.runs.records import CollectiveRecord, StepRecord

_CLOCK_STEPS: Final = 20
"""Profiled steps, on either side, that are enough to fit the clocks to."""


@dataclass(slots=True)
class Survey:
    """Of all ranks, step by step; memory grows with the steps, not with the ranks."""

    selection: Selection
    weights: dict[int, int] = field(default_factory=dict)
    """Step to the number of its events."""
    records: dict[int, int] = field(default_factory=dict)
    """Step to the number of ranks that have recorded it."""
    profiled: set[int] = field(default_factory=set)
    """Steps of which there is more than a step record."""
    collectives: dict[int, int] = field(default_factory=dict)
    """Profiled step to the number of its collectives, of all ranks."""
    times: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Step to its first start and last end, each on the clock of its rank."""
    damaged: int = 0
    """Records whose times make no sense."""
    outside: set[int] = field(default_factory=set)
    """Steps that were not chosen."""

    def add_steps(self, records: Iterable[StepRecord]) -> None:
        """Of a rank that was chosen."""
        seen: set[int] = set()
        for record in records:
            if not is_possible_step(record):
                self.damaged += 1
                continue
            step = record.step
            if not self.selection.has_step(step):
                self.outside.add(step)
                continue
            if record.profiled:
                self.profiled.add(step)
            if step not in seen:
                seen.add(step)
                self.records[step] = self.records.get(step, 0) + 1
            self.weights[step] = self.weights.get(step, 0) + step_tracks.weight(record)
            start, end = record.start_unix_ns, record.start_unix_ns + round(record.wall_us * 1000)
            first, last = self.times.get(step, (start, end))
            self.times[step] = (min(first, start), max(last, end))

    def add_collectives(self, records: Iterable[CollectiveRecord]) -> None:
        """Of any rank: to say who waited for whom those of all ranks are needed."""
        for record in records:
            if 0 <= record.step <= LAST_STEP:
                self.collectives[record.step] = self.collectives.get(record.step, 0) + 1
                self.profiled.add(record.step)

    def all_weights(self) -> dict[int, int]:
        """Step to the number of its events, collectives with them."""
        weights = dict(self.weights)
        for step, count in self.collectives.items():
            if self.selection.has_step(step):
                weights[step] = weights.get(step, 0) + count * collective_tracks.WEIGHT
        return weights

    def clock_range(self, steps: tuple[int, int]) -> tuple[int, int] | None:
        """Steps to fit the clocks to where none of ``steps`` was profiled: the next profiled ones before and after them."""
        if any(steps[0] <= step < steps[1] for step in self.collectives):
            return None
        before = sorted(step for step in self.collectives if step < steps[0])[-_CLOCK_STEPS:]
        after = sorted(step for step in self.collectives if step >= steps[1])[:_CLOCK_STEPS]
        nearest = before + after
        return (nearest[0], nearest[-1] + 1) if nearest else None

    def extent(self, steps: tuple[int, int]) -> tuple[int, int] | None:
        """First start and last end of the records of ``steps``; ``None`` without any.

        Leaves out what a damaged record moved to another age.
        """
        times = np.array([span for step, span in self.times.items() if steps[0] <= step < steps[1]], dtype=np.int64)
        if not len(times):
            return None
        typical = np.median(times[:, 0])
        near = np.abs(times - typical) < HORIZON_NS / 2
        return int(times[near[:, 0], 0].min()), int(times[near[:, 1], 1].max(initial=int(typical)))
