"""Ranks that make the others wait: what is said of them, and from how much on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result import Pattern

MINIMUM_EFFECT: Final = 0.05
"""Of the step time that would be saved; below it nobody is named, however certain."""

FIXED: Final = 0.6
"""A rank that is the last in this share of the steps is always slow; below it, now and then."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Ranks that make the others wait."""

    ranks: list[int]
    """Worst first. All that took part, when rotating."""
    pattern: Pattern
    gain_us: float
    """Mean step time that healing them saves: the longest own time minus the longest of the others', beyond what it costs
    that one of these is last.
    """
    excess_us: float
    """Mean own time of the worst above the median of its peers, in the affected steps."""
    p_value: float | None
    stability: float
    last_share: float
    """Share of the steps in which one of them was last."""
    affected: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    """[usable steps]: where one of them was last; where it is intermittent, those in which the worst was far out."""
