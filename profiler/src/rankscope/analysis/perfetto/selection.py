"""Which steps fit into a file that a browser can open."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_EVENTS: Final = 1_000_000
"""A file of some 200 MB, before compression; a browser takes a gigabyte or two of memory for it."""
_AFTER: Final = 5
"""Steps shown after the last profiled one, where not all fit."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What people asked for. Steps from ``first`` to the one before ``past``; ``None``: without that bound."""

    first: int | None = None
    past: int | None = None
    ranks: frozenset[int] | None = None
    """``None``: all."""
    max_events: int = MAX_EVENTS

    @property
    def chose_steps(self) -> bool:
        """Whether steps were named."""
        return self.first is not None or self.past is not None

    def has_step(self, step: int) -> bool:
        """Whether ``step`` is between the bounds."""
        return (self.first is None or step >= self.first) and (self.past is None or step < self.past)

    def has_steps(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """``has_step`` of each."""
        found = np.ones(len(steps), np.bool_)
        if self.first is not None:
            found &= steps >= self.first
        if self.past is not None:
            found &= steps < self.past
        return found

    def has_rank(self, rank: int) -> bool:
        """Whether ``rank`` is one of them."""
        return self.ranks is None or rank in self.ranks


def fitting_steps(weights: Mapping[int, int], profiled: AbstractSet[int], limit: int) -> tuple[int, int] | None:
    """First step and step after the last of those that fit, of all steps with their number of events; ``None`` without any.

    Where not all fit: the latest, up to a few after the last profiled step, since that shows more than others. At least one.
    """
    steps = sorted(weights)
    if not steps:
        return None
    if sum(weights.values()) <= limit:
        return steps[0], steps[-1] + 1
    last_profiled = max((at for at, step in enumerate(steps) if step in profiled), default=len(steps))
    last = min(len(steps) - 1, last_profiled + _AFTER)
    first, total = last, weights[steps[last]]
    while first > 0 and total + weights[steps[first - 1]] <= limit:
        first -= 1
        total += weights[steps[first]]
    return steps[first], steps[last] + 1
