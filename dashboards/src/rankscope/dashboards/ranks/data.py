"""All metrics of one rank in one step, beside those of the other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.data.metrics import METRICS
from rankscope.dashboards.data.source import StepMatrices

MOST_WINDOW_STEPS: Final = 512
"""Most steps to look back for the begin of a captured window."""


@dataclass(frozen=True, slots=True)
class RankValue:
    """A metric of one rank in one step, beside the other ranks' values."""

    metric: str
    value: float
    median: float
    """Median of all ranks that reported the metric in the step, including this one."""
    ranks: int
    """Number of ranks that reported the metric."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank in one step."""

    values: list[RankValue]
    """Metrics that the rank reported, in the order of ``METRICS``."""
    window: int | None
    """First step of the captured window that the step is in; ``None``: it was not profiled."""


def rank_step(table: StepMatrices, rank: int, step: int) -> RankStep | None:
    """Return the values of ``rank`` in ``step``; ``None``: the run has no such rank or step. Raises ``RankscopeError``."""
    ranks, steps = np.asarray(table.ranks), np.asarray(table.steps)
    row, column = int(np.searchsorted(ranks, rank)), int(np.searchsorted(steps, step))
    if row == len(ranks) or column == len(steps) or ranks[row] != rank or steps[column] != step:
        return None
    rank_values = []
    for metric in METRICS:
        if metric not in table.metrics:
            continue
        values = table.part(metric, column, column + 1).values[:, 0]
        if np.isfinite(values[row]):
            finite = values[np.isfinite(values)]
            rank_values.append(RankValue(metric, float(values[row]), float(np.median(finite)), len(finite)))
    first = max(0, column + 1 - MOST_WINDOW_STEPS)
    profiled = table.part("window_us", first, column + 1).values[row] if "window_us" in table.metrics else np.empty(0)
    return RankStep(rank_values, _window(profiled, steps[first : column + 1]))


def _window(profiled: NDArray[np.floating[Any]], steps: NDArray[np.int64]) -> int | None:
    """Return the first step of the gapless sequence of profiled steps that ends with the last of ``steps``."""
    if not len(profiled) or np.isnan(profiled[-1]):
        return None
    is_break = np.isnan(profiled[:-1]) | (np.diff(steps) != 1)
    begins = np.flatnonzero(is_break)
    return int(steps[int(begins[-1]) + 1 if len(begins) else 0])
