"""Survey of a run before its export: number of events and time of each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.perfetto import collective_tracks, step_tracks
from rankscope.analysis.perfetto.chrome_json import HORIZON_NS
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.trace.possible import LAST_STEP, are_possible_steps
from rankscope.runs.records import CollectiveRecord
from rankscope.runs.step_columns import PROFILED
from rankscope.runs.step_segments import Rows

_CLOCK_STEPS: Final = 20
"""Number of profiled steps, before and after the exported ones, that suffice to fit the clocks."""


_SUMS: Final = np.dtype(
    [("step", "i8"), ("events", "i8"), ("ranks", "i8"), ("start_ns", "i8"), ("end_ns", "i8"), ("profiled", "?")]
)
"""Entry of a step: its events, the ranks that recorded it, its first start and last end, each on the clock of its rank."""


@dataclass(slots=True)
class Survey:
    """Sums over all ranks per step; memory grows with the steps, not with the ranks."""

    selection: Selection
    collectives: dict[int, int] = field(default_factory=dict)
    """Profiled step to the number of its collectives on all ranks."""
    damaged: int = 0
    """Number of records with impossible times."""
    recorded: tuple[int, int] | None = None
    """First recorded step, chosen or not, and the step after the last."""
    _sums: NDArray[Any] = field(default_factory=lambda: np.empty(0, _SUMS))
    """Entries of the chosen steps, ascending."""

    def add_steps(self, blocks: Iterable[Rows]) -> None:
        """Add the step records of a chosen rank."""
        of_rank = _summed([self._chosen(rows) for rows in blocks])
        of_rank["ranks"] = 1
        self._sums = _summed([self._sums, of_rank])

    def _chosen(self, rows: Rows) -> NDArray[Any]:
        possible = are_possible_steps(rows)
        rows = rows[possible]
        self.damaged += len(possible) - len(rows)
        steps: NDArray[np.int64] = rows["step"]
        if len(steps):
            first, past = self.recorded or (int(steps[0]), 0)
            self.recorded = (min(first, int(steps.min())), max(past, int(steps.max()) + 1))
        rows = rows[self.selection.steps.among(steps)]
        sums = np.zeros(len(rows), _SUMS)
        sums["step"] = rows["step"]
        sums["events"] = step_tracks.weights(rows)
        sums["start_ns"] = rows["start_unix_ns"]
        sums["end_ns"] = rows["start_unix_ns"] + np.rint(rows["wall_us"] * 1000).astype(np.int64)
        sums["profiled"] = rows["flags"] & PROFILED != 0
        return sums

    def add_collectives(self, records: Iterable[CollectiveRecord]) -> None:
        """Add the collectives of a rank, chosen or not: finding the origin of a wait needs those of all ranks."""
        for record in records:
            if 0 <= record.step <= LAST_STEP:
                self.collectives[record.step] = self.collectives.get(record.step, 0) + 1

    @property
    def profiled(self) -> set[int]:
        """Steps that were profiled on any chosen rank or have collectives."""
        return {*self._sums["step"][self._sums["profiled"]].tolist(), *self.collectives}

    def records_of(self, steps: range) -> int:
        """Return the number of records of ``steps``: one for each step and rank."""
        return int(self._sums["ranks"][self._between(steps.start, steps.stop)].sum())

    def events_of(self, steps: range) -> int:
        """Return the number of events of ``steps``, collectives included."""
        return sum(count for step, count in self.all_weights().items() if step in steps)

    def all_weights(self) -> dict[int, int]:
        """Return the number of events of each step, collectives included."""
        weights = dict(zip(self._sums["step"].tolist(), self._sums["events"].tolist(), strict=True))
        for step, count in self.collectives.items():
            if self.selection.steps.has(step):
                weights[step] = weights.get(step, 0) + count * collective_tracks.WEIGHT
        return weights

    def clock_range(self, steps: tuple[int, int]) -> tuple[int, int] | None:
        """Return the steps to fit the clocks to: the nearest with collectives before and after ``steps``.

        Returns ``None`` if one of ``steps`` has collectives itself, or no step has.
        """
        if any(steps[0] <= step < steps[1] for step in self.collectives):
            return None
        before = sorted(step for step in self.collectives if step < steps[0])[-_CLOCK_STEPS:]
        after = sorted(step for step in self.collectives if step >= steps[1])[:_CLOCK_STEPS]
        nearest = before + after
        return (nearest[0], nearest[-1] + 1) if nearest else None

    def extent(self, steps: tuple[int, int]) -> tuple[int, int] | None:
        """Return the first start and last end of the records of ``steps``; ``None`` without any.

        Steps that a damaged record moved to a far time are left out.
        """
        sums = self._sums[self._between(*steps)]
        if not len(sums):
            return None
        starts, ends = sums["start_ns"], sums["end_ns"]
        typical = np.median(starts)
        starts, ends = (times[np.abs(times - typical) < HORIZON_NS / 2] for times in (starts, ends))
        return int(starts.min()), int(ends.max(initial=int(typical)))

    def _between(self, first: int, past: int) -> slice:
        return slice(*np.searchsorted(self._sums["step"], (first, past)).tolist())


def _summed(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Merge entries into one for each step, ascending."""
    joined = np.concatenate([np.empty(0, _SUMS), *parts])
    joined = joined[np.argsort(joined["step"], kind="stable")]
    firsts = np.flatnonzero(np.diff(joined["step"], prepend=-1))
    sums = joined[firsts]
    if len(sums) < len(joined):
        for name, reduction in _REDUCTIONS.items():
            sums[name] = reduction.reduceat(joined[name], firsts)
    return sums


_REDUCTIONS: Final = {"events": np.add, "ranks": np.add, "start_ns": np.minimum, "end_ns": np.maximum, "profiled": np.logical_or}
