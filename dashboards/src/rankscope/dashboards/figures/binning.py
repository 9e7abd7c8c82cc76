"""Reduction of a large matrix of ranks x steps to as many cells as fit a screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.dashboards.data.metrics import Worst

MAX_ROWS: Final = 256
MAX_COLUMNS: Final = 480


@dataclass(frozen=True, slots=True)
class Binned:
    """Matrix reduced to blocks."""

    values: NDArray[np.float32]
    """[rows, columns], the worst value of each block; NaN if the whole block is missing."""
    rows_per_bin: int
    columns_per_bin: int


def bin_worst(
    matrix: NDArray[np.floating[Any]], *, worst: Worst = "highest", max_rows: int = MAX_ROWS, max_columns: int = MAX_COLUMNS
) -> Binned:
    """Reduce ``matrix`` [ranks, steps] to at most ``max_rows`` x ``max_columns`` equal blocks; the last ones may be smaller.

    A block has its worst value: an average would hide one slow rank or step among a thousand.
    """
    rows, columns = matrix.shape
    high = max(1, -(-rows // max_rows))
    wide = max(1, -(-columns // max_columns))
    if high == wide == 1:
        return Binned(values=matrix.astype(np.float32), rows_per_bin=1, columns_per_bin=1)
    padded = np.full((-(-rows // high) * high, -(-columns // wide) * wide), np.nan)
    padded[:rows, :columns] = matrix
    blocks = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    reduce = (np.fmin if worst == "lowest" else np.fmax).reduce  # NaN only if all are
    return Binned(values=reduce(reduce(blocks, axis=3), axis=1).astype(np.float32), rows_per_bin=high, columns_per_bin=wide)
