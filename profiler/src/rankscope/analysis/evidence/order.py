"""Order statistics over the ranks at each step, for matrices [ranks, steps] with up to thousands of either."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.floating[Any])
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")

_BLOCK: Final = 256
"""Number of steps per block; the values of a block fit into a processor's cache."""
_WORTH_A_THREAD: Final = 1 << 20
"""Number of values from which a matrix is processed on several cores; numpy releases the GIL while it works.

The last steps of a running job have fewer values, even with 2,000 ranks: following a run needs no second core.
"""


def blocks(steps: int) -> Iterator[slice]:
    """Yield slices of consecutive steps, one per block."""
    for first in range(0, steps, _BLOCK):
        yield slice(first, min(first + _BLOCK, steps))


def of_blocks(shape: tuple[int, ...], function: Callable[[slice], _Result]) -> list[_Result]:
    """Return the results of ``function`` for each block of a matrix of ``shape`` [ranks, steps], in order.

    Blocks of a large matrix are processed in parallel.
    """
    return in_parallel(shape[0] * shape[1], function, blocks(shape[1]))


def in_parallel(size: int, function: Callable[[_Part], _Result], parts: Iterable[_Part]) -> list[_Result]:
    """Return the results of ``function`` for each of the parts of a matrix with ``size`` values, in order."""
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or size < _WORTH_A_THREAD:
        return [function(part) for part in parts]
    # Imported for large runs only: imports are a large part of the time that a small run takes.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(function, parts))


def by_step(values: NDArray[_Value]) -> NDArray[_Value]:
    """Return a copy with the values of each step adjacent in memory: [steps, ranks]."""
    copied: NDArray[_Value] = np.array(values.T, order="C")
    return copied


Rows = NDArray[np.intp] | slice
"""Selection of ranks in a matrix; the others are left out without copying the whole matrix."""
ALL: Final = slice(None)


def ordered(values: NDArray[_Value], places: Sequence[int], rows: Rows = ALL) -> NDArray[_Value]:
    """Return the values at ``places`` of each step's values in ascending order, NaN last: [places, steps]."""

    def of(steps: slice) -> NDArray[_Value]:
        # numpy vectorises a sort of short float32 rows, but not a selection of several places.
        block = by_step(values[rows, steps])
        block.sort(axis=1)
        return block[:, places].T

    blocks = of_blocks(values.shape, of)
    return np.concatenate(blocks, axis=1) if blocks else np.empty((len(places), 0), values.dtype)


@dataclass(frozen=True, slots=True)
class Leaders:
    """Largest values at each step, [steps]."""

    rows: NDArray[np.intp]
    """Row of the largest value, the first of equal ones, counted among the selected rows."""
    largest: NDArray[np.float64]
    ahead: NDArray[np.float64]
    """Largest value minus the second largest; infinite if there is no other."""
    ordered: NDArray[np.floating[Any]]
    """Result of ``ordered`` for the requested places, [places, steps]."""

    @classmethod
    def joined(cls, parts: Iterable[Leaders]) -> Leaders:
        """Return those of consecutive parts as one."""
        every = list(parts)
        return cls(
            np.concatenate([np.empty(0, np.intp), *(part.rows for part in every)]),
            np.concatenate([np.empty(0), *(part.largest for part in every)]),
            np.concatenate([np.empty(0), *(part.ahead for part in every)]),
            np.concatenate([part.ordered for part in every], axis=1) if every else np.empty((0, 0)),
        )


def leaders(values: NDArray[_Value], rows: Rows = ALL, places: Sequence[int] = ()) -> Leaders:
    """Return the largest values at each step of a matrix [ranks, steps], and ``ordered`` for ``places``, in one pass."""
    return Leaders.joined(of_blocks(values.shape, lambda steps: leaders_of_block(by_step(values[rows, steps]), places)))


def leaders_of_block(block: NDArray[_Value], places: Sequence[int] = ()) -> Leaders:
    """Return the same for each row of a block [steps, ranks], which it overwrites."""
    largest, at = block.argmax(axis=1), np.arange(len(block))
    first = block[at, largest].astype(np.float64)
    if places:
        block.sort(axis=1)
        second = block[:, -2] if block.shape[1] > 1 else -np.inf
    else:
        block[at, largest] = -np.inf
        second = block.max(axis=1)
    return Leaders(largest, first, first - second, block[:, list(places)].T)


def last_ranks(values: NDArray[_Value]) -> NDArray[np.intp]:
    """Return the row of the largest value at each step, the first of equal ones."""
    blocks = of_blocks(values.shape, lambda steps: by_step(values[:, steps]).argmax(axis=1))
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.intp)
