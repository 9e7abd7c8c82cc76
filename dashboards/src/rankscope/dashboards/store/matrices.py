"""Matrices of a run: those of every step, and those of the profiled steps, behind one interface."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import PAIR
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.evidence.compared import imposed_by_step
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.dashboards.data.metrics import of_origin, worst_of
from rankscope.dashboards.data.source import StepPart
from rankscope.dashboards.store.tiles import Tiles
from rankscope.runs.records import StepBreakdown


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

    def part(self, metric: str, first: int = 0, last: int | None = None, *, most_columns: int = 4096) -> StepPart:
        """See ``StepMatrices``."""
        if metric not in self._profiled.meta.metrics:
            return self._all.part(metric, first, last, most_columns=most_columns)
        frame = self._all.frame(first, last, most_columns=most_columns)
        # A follower replaces the two one after the other, so only ranks and steps that both have are shown.
        profiled_rows, in_profile = np.isin(self.ranks, self._profiled.ranks), np.isin(self._profiled.ranks, self.ranks)
        in_matrix = np.isin(self._profiled.steps, self.steps)
        few = self._profiled.part(metric, most_columns=len(in_matrix)).values[in_profile][:, in_matrix]
        columns = (np.searchsorted(self.steps, self._profiled.steps[in_matrix]) - frame.first) // frame.steps_per_column
        values = np.full((len(self.ranks), frame.columns), np.nan, np.float32)
        for at in np.unique(columns[(columns >= 0) & (columns < frame.columns)]):
            values[profiled_rows, at] = worst_of(metric).reduce(few[:, columns == at], axis=1)
        return StepPart(values, frame.first, frame.steps_per_column)


Values = NDArray[np.float32]

_WINDOW_METRICS: Final = of_origin("windows")


@dataclass(frozen=True, slots=True)
class StepValues:
    """Metrics of some steps; matrices are [ranks, steps], NaN where not known."""

    steps: NDArray[np.int64]
    """Ascending."""
    metrics: dict[str, Values]


def window_values(run: RunEvidence) -> StepValues:
    """Return the metrics of profiled steps that have step records; metrics without any value are left out."""
    ranks, windows = run.ranks, run.windows
    profiled = {row.step for reduction in windows.values() for row in reduction.breakdowns}
    steps = np.intersect1d(run.table.steps, np.array(sorted(profiled), np.int64))
    metrics = _breakdowns(ranks, windows, steps)
    if run.blame.steps:
        metrics["profiled_imposed_wait_us"] = _imposed(run, steps)
    return StepValues(steps, {name: values for name, values in metrics.items() if np.isfinite(values).any()})


def imposed_values(run: RunEvidence) -> Values:
    """Return ``imposed_wait_us`` by comparing ranks, [ranks, steps of the table]; NaN where ranks cannot be compared."""
    values = np.full((len(run.ranks), len(run.table.steps)), np.nan, np.float32)
    for judged in run.compared:
        last, wait = imposed_by_step(judged)
        columns = np.searchsorted(run.table.steps, judged.table.steps)
        for row in judged.rows:
            values[row, columns] = 0
        values[judged.rows[last], columns] = wait
    return values


def _breakdowns(ranks: Sequence[int], windows: Mapping[int, Reduction], steps: NDArray[np.int64]) -> dict[str, Values]:
    column = {int(step): at for at, step in enumerate(steps)}
    places = [
        (row, at, breakdown)
        for row, rank in enumerate(ranks)
        for breakdown in windows[rank].breakdowns
        if (at := column.get(breakdown.step)) is not None
    ]
    rows, columns = [row for row, _, _ in places], [at for _, at, _ in places]
    values = {name: np.full((len(ranks), len(steps)), np.nan, np.float32) for name in _WINDOW_METRICS}
    for name, matrix in values.items():
        matrix[rows, columns] = np.array([_value(breakdown, name) for _, _, breakdown in places], np.float32)  # None is NaN
    return values


def _value(breakdown: StepBreakdown, metric: str) -> float | None:
    if metric == "overlap_ratio":
        return breakdown.overlap_us / breakdown.communication_us if breakdown.communication_us > 0 else None
    value: float | None = getattr(breakdown, metric)
    return value


def _imposed(run: RunEvidence, steps: NDArray[np.int64]) -> Values:
    """Return imposed wait, [ranks, steps]: 0 for a rank in matched collectives of the step that imposed none, NaN if in none."""
    column = {int(step): at for at, step in enumerate(steps)}
    row = {rank: at for at, rank in enumerate(run.ranks)}
    values = np.full((len(row), len(steps)), np.nan, np.float32)
    for part in (run.matching.matches, run.matching.directed):
        arrivals = part.chosen(part.rule != PAIR)
        for rank, step in set(zip(arrivals.rank.tolist(), arrivals.step[arrivals.instance].tolist(), strict=True)):
            if rank in row and step in column:
                values[row[rank], column[step]] = 0
    for rank, step, imposed_us in zip(*(part.tolist() for part in run.blame.imposed_by_step), strict=True):
        if step in column:
            values[row[rank], column[step]] = imposed_us
    return values
