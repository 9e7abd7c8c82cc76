"""Grouping of rows by key, with one sort for any number of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def by_key(*columns: NDArray[np.generic]) -> Iterator[NDArray[np.intp]]:
    """Yield the positions of each group of rows with equal values in all ``columns``.

    Positions are ascending. Groups are in the order of the columns' values, compared from the first column on.
    """
    if not len(columns[0]):
        return
    order = np.lexsort(columns[::-1])
    changes = np.zeros(len(order) - 1, dtype=bool)
    for column in columns:
        held = column[order]
        changes |= held[1:] != held[:-1]
    yield from np.split(order, np.flatnonzero(changes) + 1)


def distinct(numbers: NDArray[np.integer[Any]]) -> list[int]:
    """Return the distinct values of ``numbers`` in ascending order; ``numbers`` must be non-negative and small."""
    # np.unique is slower here: its first call imports numpy.ma, which takes as long as the analysis of a small trace.
    return np.flatnonzero(np.bincount(numbers)).tolist()
