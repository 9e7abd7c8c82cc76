"""Collectives are the clock: they end on all their ranks at once, so their ends tell how far the ranks' clocks are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankscope.analysis.matching import Match


@dataclass(frozen=True, slots=True)
class Clocks:
    """Offsets to subtract from a rank's times, and what remains uncertain after that."""

    offset_ns: dict[int, int] = field(default_factory=dict)
    residual_ns: float | None = None
    """Median over collectives of the spread (last minus first) of the corrected ends; ``None`` without a match."""

    def correct(self, rank: int, unix_ns: int) -> int:
        """A time of ``rank`` on the common clock."""
        return unix_ns - self.offset_ns.get(rank, 0)


def fit_clocks(matches: Sequence[Match]) -> Clocks:
    """Offset of each rank against the others, from matched ends.

    The reference of a collective is the median of its ranks' ends; ranks of one group thus share a clock, and groups share one
    through the ranks that are in both. Repeated a few times so that it spreads over groups. Drift within a window of seconds
    is far below the residual.
    """
    if not matches:
        return Clocks()
    ranks = sorted({rank for match in matches for rank in match.ranks})
    column = {rank: at for at, rank in enumerate(ranks)}
    # One dense row per collective: groups are few, and NaN marks who is not in it. Relative times keep float64 exact to the
    # nanosecond.
    base = min(record.end_unix_ns for match in matches for record in match.records)
    ends = np.full((len(matches), len(ranks)), np.nan)
    for row, match in enumerate(matches):
        ends[row, [column[rank] for rank in match.ranks]] = [record.end_unix_ns - base for record in match.records]
    offset = np.zeros(len(ranks))
    for _ in range(8):
        corrected = ends - offset
        step = np.nanmedian(corrected - np.nanmedian(corrected, axis=1, keepdims=True), axis=0)
        offset += step
        if np.abs(step).max() < 1:
            break
    offset -= np.median(offset)
    corrected = ends - offset
    spread = np.nanmax(corrected, axis=1) - np.nanmin(corrected, axis=1)
    return Clocks({rank: round(float(offset[at])) for at, rank in enumerate(ranks)}, float(np.median(spread)))
