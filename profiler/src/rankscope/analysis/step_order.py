"""Order statistics over the ranks at each step, of matrices [ranks, steps] that may be of thousands of either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.floating[Any])

_BLOCK: Final = 256
"""So many steps at a time, side by side in memory, fit into a processor's cache."""


def blocks(steps: int) -> Iterator[slice]:
    """Consecutive steps, a block at a time."""
    for first in range(0, steps, _BLOCK):
        yield slice(first, min(first + _BLOCK, steps))


def ordered(values: NDArray[_Value], places: Sequence[int]) -> NDArray[_Value]:
    """What is at ``places`` of each step's values in ascending order, NaN last: [places, steps]."""
    found = np.empty((len(places), values.shape[1]), values.dtype)
    for steps in blocks(values.shape[1]):
        # A sort of so few in single precision is vectorised, a selection of several places is not.
        block = np.ascontiguousarray(values[:, steps].T)
        block.sort(axis=1)
        found[:, steps] = block[:, places].T
    return found


def medians(values: NDArray[_Value]) -> NDArray[np.float64]:
    """The median over the ranks at each step."""
    count = len(values)
    low, high, last = ordered(values, [(count - 1) // 2, count // 2, count - 1]).astype(np.float64)
    return np.where(np.isnan(last), np.nan, (low + high) / 2)


def last_ranks(values: NDArray[_Value]) -> NDArray[np.intp]:
    """The row of the largest value at each step, the first of several."""
    found = np.empty(values.shape[1], dtype=np.intp)
    for steps in blocks(values.shape[1]):
        found[steps] = np.ascontiguousarray(values[:, steps].T).argmax(axis=1)
    return found
