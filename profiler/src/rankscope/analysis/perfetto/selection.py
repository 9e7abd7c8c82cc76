"""Selection of steps and ranks that fit into a file that a browser can open."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_EVENTS: Final = 1_000_000
"""Maximum events: a file of some 200 MB before compression, for which a browser needs one or two gigabytes of memory."""
_AFTER: Final = 5
"""Number of steps shown after the last profiled one, where not all fit."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Steps and ranks that the user chose. Steps from ``first`` to the one before ``past``; ``None``: no bound."""

    first: int | None = None
    past: int | None = None
    ranks: frozenset[int] | None = None
    """Chosen ranks; ``None``: all."""
    max_events: int = MAX_EVENTS
    cycle: int | None = None
    """Number of the cycle of the profiler's schedule, see ``engine.analyze``; for traces."""

    @property
    def chose_steps(self) -> bool:
        """True if the user chose steps."""
        return self.first is not None or self.past is not None

    def has_step(self, step: int) -> bool:
        """Return whether ``step`` is within the bounds."""
        return (self.first is None or step >= self.first) and (self.past is None or step < self.past)

    def has_steps(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return ``has_step`` for each of ``steps``."""
        chosen = np.ones(len(steps), np.bool_)
        if self.first is not None:
            chosen &= steps >= self.first
        if self.past is not None:
            chosen &= steps < self.past
        return chosen

    def has_rank(self, rank: int) -> bool:
        """Return whether ``rank`` is chosen."""
        return self.ranks is None or rank in self.ranks


def fitting_steps(
    weights: Mapping[int, int], profiled: AbstractSet[int], limit: int, *, from_first: bool = False
) -> tuple[int, int] | None:
    """Return the first step and the step after the last of the steps that fit; ``None`` without any step.

    ``weights``: step to its number of events. Where not all fit, the range holds the last profiled step and a few after it, as
    profiled steps show more. It reaches back as far as fits, then forward. With ``from_first``, as where the user chose the
    steps, it begins at the first one. It has at least one step.
    """
    steps = sorted(weights)
    if not steps:
        return None
    if sum(weights.values()) <= limit:
        return steps[0], steps[-1] + 1
    last_profiled = max((at for at, step in enumerate(steps) if step in profiled), default=len(steps))
    last = 0 if from_first else min(len(steps) - 1, last_profiled + _AFTER)
    first, total = last, weights[steps[last]]
    while first > 0 and total + weights[steps[first - 1]] <= limit:
        first -= 1
        total += weights[steps[first]]
    while last + 1 < len(steps) and total + weights[steps[last + 1]] <= limit:
        last += 1
        total += weights[steps[last]]
    return steps[first], steps[last] + 1
