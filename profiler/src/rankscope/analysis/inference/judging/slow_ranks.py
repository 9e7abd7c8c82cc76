"""Slow ranks that make the others wait, and the limits from which a rank counts as slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.analysis import Pattern

MINIMUM_EFFECT: Final = 0.05
"""Share of the step time that healing a rank must save; below it no rank is named, however certain the result."""

FIXED: Final = 0.6
"""Share of the steps in which a rank must be last to be slow always (``fixed``); below it, the slowness is intermittent."""


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """Ranks that make the others wait."""

    ranks: list[int]
    """Slow ranks, worst first; when rotating, all ranks that took part."""
    pattern: Pattern
    gain_us: float
    """Mean step time that healing these ranks saves: the longest own time minus the longest among the other ranks.

    The typical saving from healing one of the others is subtracted, because one of them would then be last.
    """
    excess_us: float
    """Mean excess of the worst rank's own time over the median of its peers, in the affected steps."""
    p_value: float | None
    certainty: float
    """Probability that healing these ranks saves ``MINIMUM_EFFECT`` of the step, by noise and p-value."""
    last_share: float
    """Share of the steps in which one of these ranks was last."""
    affected: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    """True at the steps in which one of these ranks was last, or, if intermittent, the worst was an outlier; [usable steps]."""
    behind: list[int] = field(default_factory=list)
    """Other slow ranks, which make no rank wait yet, because these ranks are slower."""
    hosts: list[str] = field(default_factory=list)
    """Hosts most of whose ranks are among the slow ones."""
    gain_low_us: float | None = None
    """Lower bound of ``gain_us``; ``None``: not estimated."""
    gain_high_us: float | None = None
    """Upper bound of ``gain_us``."""
