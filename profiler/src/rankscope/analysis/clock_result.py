"""The part of the result that says how far a rank's clock was off."""

from __future__ import annotations

import msgspec


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of one rank against the common one: the middle of the clocks that matched collectives link. Ranks of one host
    have one clock.
    """

    offset_us: float
    """What it is ahead, in the middle of its collectives."""
    drift_ppm: float | None
    """By how much it is too fast, as microseconds per second, over the longest time between two steps of it. ``None``: it cannot
    be told from an offset that stays, because the collectives are too few, too close together or end too raggedly."""
    settings: int
    """1, and 1 more for each time that it was set while collectives were seen."""
    residual_us: float
    """Median distance of the ends of this rank's collectives from those of its peers, after the correction."""
