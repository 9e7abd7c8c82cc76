"""Everything that is known of one step, of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.data.metrics import METRICS
from rankscope.dashboards.data.source import StepMatrices

MOST_WINDOW_STEPS: Final = 512
"""So far back the begin of a captured window is looked for."""


@dataclass(frozen=True, slots=True)
class OneValue:
    """A metric of one rank in one step, beside the others'."""

    metric: str
    value: float
    median: float
    """Of all ranks in that step that told it, this one among them."""
    ranks: int
    """So many told it."""


@dataclass(frozen=True, slots=True)
class OneStep:
    """One rank in one step."""

    values: list[OneValue]
    """Those that the rank told, in the order of ``METRICS``."""
    window: int | None
    """First step of the captured window that the step is in; ``None``: it was not profiled."""


def one_step(table: StepMatrices, rank: int, step: int) -> OneStep | None:
    """What is known of ``rank`` in ``step``; ``None``: the run has no such rank or step. Raises ``RankscopeError``."""
    ranks, steps = np.asarray(table.ranks), np.asarray(table.steps)
    row, column = int(np.searchsorted(ranks, rank)), int(np.searchsorted(steps, step))
    if row == len(ranks) or column == len(steps) or ranks[row] != rank or steps[column] != step:
        return None
    found = []
    for metric in METRICS:
        if metric not in table.metrics:
            continue
        values = table.part(metric, column, column + 1).values[:, 0]
        if np.isfinite(values[row]):
            known = values[np.isfinite(values)]
            found.append(OneValue(metric, float(values[row]), float(np.median(known)), len(known)))
    first = max(0, column + 1 - MOST_WINDOW_STEPS)
    profiled = table.part("window_us", first, column + 1).values[row] if "window_us" in table.metrics else np.empty(0)
    return OneStep(found, _window(profiled, steps[first : column + 1]))


def _window(profiled: NDArray[np.floating[Any]], steps: NDArray[np.int64]) -> int | None:
    """First of the steps without a gap that end with the last one and were profiled."""
    if not len(profiled) or np.isnan(profiled[-1]):
        return None
    apart = np.isnan(profiled[:-1]) | (np.diff(steps) != 1)
    begins = np.flatnonzero(apart)
    return int(steps[int(begins[-1]) + 1 if len(begins) else 0])
