"""Rows by key, in one sort however many keys there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def by_key(*columns: NDArray[np.generic]) -> Iterator[NDArray[np.intp]]:
    """Positions with equal values in all ``columns``, ascending; groups in the order of the columns' values, the first column
    first.
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
    """The different numbers in ``numbers``, none of which is negative or large, ascending."""
    # Of small numbers faster than np.unique, whose first call imports numpy.ma, which takes as long as a small trace.
    return np.flatnonzero(np.bincount(numbers)).tolist()
