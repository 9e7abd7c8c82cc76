"""Tables and matrices of many cells: rows computed on access, and the reduction of a matrix to what fits a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.data.metrics import Worst
from rankscope.dashboards.model.drawn import Cell


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
            return [self[number] for number in range(*at.indices(len(self)))]
        row, column = divmod(range(len(self))[at], self.values.shape[1])
        value = float(self.values[row, column])
        return (*self.rows[row], *self.columns[column], None if np.isnan(value) else value)


class LazyRows(Sequence[tuple[Cell, ...]]):
    """Table rows that are computed on first access: most figures are viewed and never saved."""

    def __init__(self, make: Callable[[], Sequence[tuple[Cell, ...]]]) -> None:
        self._rows = cache(make)

    def __len__(self) -> int:
        return len(self._rows())

    @overload
    def __getitem__(self, at: int) -> tuple[Cell, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[Cell, ...]]: ...
    def __getitem__(self, at: int | slice) -> Any:
        return self._rows()[at]


MAX_ROWS: Final = 256
MAX_COLUMNS: Final = 480


@dataclass(frozen=True, slots=True)
class BinnedMatrix:
    """Matrix reduced to blocks."""

    values: NDArray[np.float32]
    """[rows, columns], the worst value of each block; NaN if the whole block is missing."""
    rows_per_bin: int
    columns_per_bin: int


def bin_worst(
    matrix: NDArray[np.floating[Any]], *, worst: Worst = "highest", max_rows: int = MAX_ROWS, max_columns: int = MAX_COLUMNS
) -> BinnedMatrix:
    """Reduce ``matrix`` [ranks, steps] to at most ``max_rows`` x ``max_columns`` equal blocks; the last ones may be smaller.

    A block has its worst value: an average would hide one slow rank or step among a thousand.
    """
    rows, columns = matrix.shape
    high = max(1, -(-rows // max_rows))
    wide = max(1, -(-columns // max_columns))
    if high == wide == 1:
        return BinnedMatrix(values=matrix.astype(np.float32), rows_per_bin=1, columns_per_bin=1)
    padded = np.full((-(-rows // high) * high, -(-columns // wide) * wide), np.nan)
    padded[:rows, :columns] = matrix
    blocks = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    reduce = (np.fmin if worst == "lowest" else np.fmax).reduce  # NaN only if all are
    return BinnedMatrix(values=reduce(reduce(blocks, axis=3), axis=1).astype(np.float32), rows_per_bin=high, columns_per_bin=wide)
