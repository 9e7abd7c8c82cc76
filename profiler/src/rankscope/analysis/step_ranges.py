"""Compact set of step numbers, stored as ranges because most numbers are consecutive."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class StepRanges:
    """Set of step numbers, as ranges that do not touch."""

    _first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _end: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, steps: NDArray[np.int64]) -> None:
        """Add steps; steps already in the set are ignored."""
        if not len(steps):
            return
        steps = np.unique(steps)
        breaks = np.flatnonzero(np.diff(steps) != 1)
        first = np.concatenate([self._first, steps[:1], steps[breaks + 1]])
        end = np.concatenate([self._end, steps[breaks] + 1, steps[-1:] + 1])
        order = np.argsort(first, kind="stable")
        first, reach = first[order], np.maximum.accumulate(end[order])
        begins = np.concatenate([[True], first[1:] > reach[:-1]])
        self._first = first[begins]
        self._end = reach[np.concatenate([begins[1:], [True]])]

    @property
    def count(self) -> int:
        """Number of different steps in the set."""
        return int((self._end - self._first).sum())
