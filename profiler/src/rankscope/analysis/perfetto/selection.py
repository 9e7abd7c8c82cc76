"""Selection of steps and ranks that fit into a file that a browser can open."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from rankscope.analysis.evidence.step_table.chosen_steps import ALL_STEPS, StepRange

MAX_EVENTS: Final = 1_000_000
"""Maximum events: a file of some 200 MB before compression, for which a browser needs one or two gigabytes of memory."""
_AFTER: Final = 5
"""Number of steps shown after the last profiled one, where not all fit."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Steps and ranks that the user chose."""

    steps: StepRange = ALL_STEPS
    ranks: frozenset[int] | None = None
    """Chosen ranks; ``None``: all."""
    max_events: int = MAX_EVENTS
    cycle: int | None = None
    """Number of the cycle of the profiler's schedule, see ``engine.analyze``; for traces."""

    @property
    def chose_steps(self) -> bool:
        """True if the user chose steps."""
        return self.steps != ALL_STEPS

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
