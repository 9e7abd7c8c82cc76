"""Clock offset of a rank: part of the result."""

from __future__ import annotations

import msgspec


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """Clock of one rank against the common clock, the median of the clocks that matched collectives link. Ranks of one host
    have one clock.
    """

    offset_us: float
    """Time by which it is ahead of the common clock: the median over the rank's collectives."""
    drift_ppm: float | None
    """Drift in microseconds per second, positive if it is too fast, over the longest time in which it was not set. ``None``: the
    drift cannot be separated from a constant offset: the collectives are too few, too close together or end too raggedly."""
    settings: int
    """1, plus 1 for each time that the clock was set while collectives were seen."""
    residual_us: float
    """Median distance of the ends of this rank's collectives from those of its peers, after the correction."""
