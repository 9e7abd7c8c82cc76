"""All matrices of a run behind one interface: those of every step, and those of the profiled steps."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.data.metrics import worst_of
from rankscope.dashboards.data.source import Part
from rankscope.dashboards.data.tiles import Tiles


class RunMatrices:
    """``StepMatrices`` over ``steps`` and ``profiled``; the columns of ``profiled`` are a subset of the steps."""

    def __init__(self, steps: Tiles, profiled: Tiles) -> None:
        self._all = steps
        self._profiled = profiled
        self.ranks: NDArray[np.int64] = steps.ranks
        self.steps: NDArray[np.int64] = steps.steps

    @property
    def metrics(self) -> Collection[str]:
        """Metrics that have any value."""
        return {*self._all.meta.metrics, *self._profiled.meta.metrics}

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> Part:
        """See ``StepMatrices``."""
        if metric not in self._profiled.meta.metrics:
            return self._all.part(metric, first, last, most_columns=most_columns)
        frame = self._all.frame(first, last, most_columns=most_columns)
        # A follower replaces the two one after the other, so only ranks and steps that both have are shown.
        here, there = np.isin(self.ranks, self._profiled.ranks), np.isin(self._profiled.ranks, self.ranks)
        known = np.isin(self._profiled.steps, self.steps)
        few = self._profiled.part(metric, most_columns=len(known)).values[there][:, known]
        columns = (np.searchsorted(self.steps, self._profiled.steps[known]) - frame.first) // frame.steps_per_column
        values = np.full((len(self.ranks), frame.columns), np.nan, np.float32)
        for at in np.unique(columns[(columns >= 0) & (columns < frame.columns)]):
            values[here, at] = worst_of(metric).reduce(few[:, columns == at], axis=1)
        return Part(values, frame.first, frame.steps_per_column)
