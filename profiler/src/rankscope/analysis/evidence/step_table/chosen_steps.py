"""Steps of a run that the user chose with ``--steps``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.step_table.recent import EarlierTotals
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.base.errors import InputError
from rankscope.base.text import step_range


class StepRange(NamedTuple):
    """Steps from ``first`` to the one before ``past``; ``None``: no bound."""

    first: int | None = None
    past: int | None = None

    def has(self, step: int) -> bool:
        """Return whether ``step`` is within the bounds."""
        return (self.first is None or step >= self.first) and (self.past is None or step < self.past)

    def among(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which ``steps`` are within the bounds."""
        within = np.ones(len(steps), np.bool_)
        if self.first is not None:
            within &= steps >= self.first
        if self.past is not None:
            within &= steps < self.past
        return within

    def of(self, rows: Sequence[_Row]) -> list[_Row]:
        """Return the records of these steps."""
        return list(rows) if self == ALL_STEPS else [row for row in rows if self.has(row.step)]

    def cut(self, table: StepTable, path: str | os.PathLike[str]) -> StepTable:
        """Return the table of these steps. Raises ``InputError`` if it has none of them, or if earlier ones were not read."""
        if self == ALL_STEPS:
            return table
        numbers = table.steps
        keep = self.among(numbers)
        if not keep.any() or (table.earlier.steps and (self.first or 0) < numbers[0]):
            known_steps = f"there are {steps_text(table)}" if len(numbers) else "no step was recorded"
            read = "; of so long a run only the last steps are read" if table.earlier.steps else ""
            raise InputError(path, f"no such steps: {known_steps}{read}")
        return replace(table.columns(keep), earlier=EarlierTotals())


class _Stepped(Protocol):
    @property
    def step(self) -> int: ...


_Row = TypeVar("_Row", bound=_Stepped)
ALL_STEPS: Final = StepRange()


def steps_text(table: StepTable) -> str:
    """Return the first and the last step of a table as a phrase."""
    return step_range((int(table.steps[0]), int(table.steps[-1]) + 1))
