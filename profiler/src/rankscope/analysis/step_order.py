"""Order statistics over the ranks at each step, of matrices [ranks, steps] that may be of thousands of either."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.floating[Any])
_Result = TypeVar("_Result")

_BLOCK: Final = 256
"""So many steps at a time, side by side in memory, fit into a processor's cache."""
_WORTH_A_THREAD: Final = 1 << 20
"""Values in a matrix, from which on it is gone through on several cores; numpy lets others run while it works.

The last steps of a run that goes on are fewer, even of 2,000 ranks: whoever follows it has no need of two cores.
"""


def blocks(steps: int) -> Iterator[slice]:
    """Consecutive steps, a block at a time."""
    for first in range(0, steps, _BLOCK):
        yield slice(first, min(first + _BLOCK, steps))


def of_blocks(shape: tuple[int, ...], function: Callable[[slice], _Result]) -> list[_Result]:
    """What ``function`` makes of each block of a matrix of this shape, [ranks, steps], in order; side by side of a large one."""
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or shape[0] * shape[1] < _WORTH_A_THREAD:
        return [function(steps) for steps in blocks(shape[1])]
    # Imported for large runs only: of the time that a small one takes, imports are a good part.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(function, blocks(shape[1])))


def by_step(values: NDArray[_Value]) -> NDArray[_Value]:
    """A copy with the values of a step side by side: [steps, ranks]."""
    copied: NDArray[_Value] = np.array(values.T, order="C")
    return copied


Rows = NDArray[np.intp] | slice
"""Of ranks in a matrix; the others are left out without a copy of the whole."""
ALL: Final = slice(None)


def ordered(values: NDArray[_Value], places: Sequence[int], rows: Rows = ALL) -> NDArray[_Value]:
    """What is at ``places`` of each step's values in ascending order, NaN last: [places, steps]."""

    def of(steps: slice) -> NDArray[_Value]:
        # A sort of so few in single precision is vectorised, a selection of several places is not.
        block = by_step(values[rows, steps])
        block.sort(axis=1)
        return block[:, places].T

    found = of_blocks(values.shape, of)
    return np.concatenate(found, axis=1) if found else np.empty((len(places), 0), values.dtype)


@dataclass(frozen=True, slots=True)
class Leaders:
    """The largest value at each step, [steps]."""

    rows: NDArray[np.intp]
    """Its row, the first of several, counted among the rows looked at."""
    largest: NDArray[np.float64]
    ahead: NDArray[np.float64]
    """How far it is ahead of the second largest; infinite where there is no other."""


def leaders(values: NDArray[_Value], rows: Rows = ALL) -> Leaders:
    """The largest values at each step of a matrix [ranks, steps]."""

    def of(steps: slice) -> Leaders:
        block = by_step(values[rows, steps])
        largest, at = block.argmax(axis=1), np.arange(len(block))
        first = block[at, largest].astype(np.float64)
        block[at, largest] = -np.inf
        return Leaders(largest, first, first - block.max(axis=1))

    found = of_blocks(values.shape, of)
    return Leaders(
        np.concatenate([np.empty(0, np.intp), *(one.rows for one in found)]),
        np.concatenate([np.empty(0), *(one.largest for one in found)]),
        np.concatenate([np.empty(0), *(one.ahead for one in found)]),
    )


def last_ranks(values: NDArray[_Value]) -> NDArray[np.intp]:
    """The row of the largest value at each step, the first of several."""
    found = of_blocks(values.shape, lambda steps: by_step(values[:, steps]).argmax(axis=1))
    return np.concatenate(found) if found else np.empty(0, dtype=np.intp)
