"""Table rows computed on access: a heat map has a hundred thousand cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.figures.drawn import Cell


@dataclass(frozen=True, slots=True)
class CellRows(Sequence[tuple[Cell, ...]]):
    """Table with one row per cell: the names of its row and its column, and its value."""

    rows: Sequence[tuple[Cell, ...]]
    columns: Sequence[tuple[Cell, ...]]
    values: NDArray[np.floating[Any]]
    """[rows, columns]; NaN is unknown."""

    def __len__(self) -> int:
        return self.values.size

    @overload
    def __getitem__(self, at: int) -> tuple[Cell, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[Cell, ...]]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        row, column = divmod(range(len(self))[at], self.values.shape[1])
        value = float(self.values[row, column])
        return (*self.rows[row], *self.columns[column], None if np.isnan(value) else value)


@dataclass(slots=True)
class Later(Sequence[tuple[Cell, ...]]):
    """Table rows that are computed on first access: most figures are viewed and never saved."""

    make: Callable[[], Sequence[tuple[Cell, ...]]]
    _made: Sequence[tuple[Cell, ...]] | None = None

    @property
    def _rows(self) -> Sequence[tuple[Cell, ...]]:
        if self._made is None:
            self._made = self.make()
        return self._made

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> tuple[Cell, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[Cell, ...]]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return self._rows[at]
