"""Starts of some steps of each rank, which show whether ranks count their steps alike (``simultaneous``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SAMPLES: Final = 256
"""Number of steps of each rank whose starts are looked at, about; all are only read where these show a difference."""
FIRST: Final = 16
"""Number of steps at the start that are all looked at, for the lag at the beginning."""


@dataclass(frozen=True, slots=True)
class SampledStarts:
    """Starts of some steps of each rank, evenly spread and with its first and last ones, [ranks, samples]."""

    steps: Floats
    """Step numbers; NaN beyond those of a rank."""
    starts: Floats
    """Unix nanoseconds; NaN where there is no record."""

    @classmethod
    def of_ranks(cls, starts: Sequence[tuple[Ints, Ints]]) -> SampledStarts:
        """Return the samples of ranks, given by the numbers and starts of their steps as ``sample`` returns them."""
        most = max((len(numbers) for numbers, _ in starts), default=0)
        samples = cls(*(np.full((len(starts), most), np.nan) for _ in range(2)))
        for row, (numbers, at) in enumerate(starts):
            samples.steps[row, : len(numbers)] = numbers
            samples.starts[row, : len(numbers)] = at
        return samples

    @classmethod
    def of_matrix(cls, steps: Ints, starts: Ints) -> SampledStarts:
        """Return the samples of starts, [ranks, steps]; 0 where there is no record."""
        places = _places(len(steps))
        at = starts[:, places].astype(np.float64)
        at[at == 0] = np.nan
        return cls(np.broadcast_to(steps[places].astype(np.float64), at.shape), at)


def sample(steps: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """Return the numbers and starts of some steps of a rank."""
    places = _places(len(steps))
    return steps[places], starts[places]


def _places(count: int) -> NDArray[np.intp]:
    if count <= _SAMPLES:
        return np.arange(count)
    later_places = np.linspace(FIRST, count - 1, _SAMPLES - FIRST).astype(np.intp)
    return np.concatenate([np.arange(FIRST), later_places])
