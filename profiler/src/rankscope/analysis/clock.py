"""Collectives are the clock: they end on all their ranks at once, so their ends tell how far the ranks' clocks are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.matching import Match, Matching, arrival_ns


class Clocks(msgspec.Struct, frozen=True):
    """Offsets to subtract from a rank's times, and what remains uncertain after that."""

    offset_ns: dict[int, int] = msgspec.field(default_factory=dict)
    residual_ns: float | None = None
    """Median over collectives of the spread (last minus first) of the corrected ends; ``None`` without a match."""

    def correct(self, rank: int, unix_ns: int) -> int:
        """A time of ``rank`` on the common clock."""
        return unix_ns - self.offset_ns.get(rank, 0)


TOLERANCE_NS: Final = 1_000_000
"""What the correction of a clock may be wrong by, before an impossible order of events is believed to be one."""


_ROUNDS: Final = 32
"""Groups of two or three hosts each halve what is left, those that all hosts are in need one round."""


def fit_clocks(matches: Sequence[Match], hosts: Mapping[int, str] | None = None) -> Clocks:
    """Offset of each host against the others, from matched ends. Ranks whose host is not known have a clock of their own.

    The reference of a collective is the median of its ranks' ends. Repeated a few times so that it spreads over groups through
    the hosts that are in several. Drift within a window of seconds is far below the residual.
    """
    if not matches:
        return Clocks()
    ranks = sorted({rank for match in matches for rank in match.ranks})
    keys: list[str | int] = [(hosts or {}).get(rank, rank) for rank in ranks]
    column = {rank: at for at, rank in enumerate(ranks)}
    # One dense row per collective; NaN marks who is not in it. Times relative to the first keep float64 exact to the nanosecond.
    base = min(record.end_unix_ns for match in matches for record in match.records)
    ends = np.full((len(matches), len(ranks)), np.nan)
    for row, match in enumerate(matches):
        ends[row, [column[rank] for rank in match.ranks]] = [record.end_unix_ns - base for record in match.records]
    members = [np.array([at for at, key in enumerate(keys) if key == one]) for one in dict.fromkeys(keys)]
    offset = np.zeros(len(ranks))
    # With a single clock there is nothing to correct, and fitting would take scheduling noise for an offset.
    for _ in range(_ROUNDS if len(members) > 1 else 0):
        apart = ends - offset
        apart = apart - np.nanmedian(apart, axis=1, keepdims=True)
        step = np.zeros(len(ranks))
        for columns in members:
            step[columns] = np.nanmedian(apart[:, columns])
        offset += step
        if np.abs(step).max() < 1:
            break
    offset -= np.median(offset)
    corrected = ends - offset
    spread = np.nanmax(corrected, axis=1) - np.nanmin(corrected, axis=1)
    return Clocks({rank: round(float(offset[at])) for at, rank in enumerate(ranks)}, float(np.median(spread)))


def consistent(matching: Matching, clocks: Clocks) -> Matching:
    """Without the matches that cannot be one collective: nobody leaves before the last has arrived.

    Traces of CPU collectives do not tell the process group, so those of several groups may have been put together.
    """
    kept = [match for match in matching.matches if _is_possible(match, clocks)]
    dropped = len(matching.matches) - len(kept)
    if not dropped:
        return matching
    return msgspec.structs.replace(
        matching,
        matches=kept,
        unmatched=matching.unmatched + dropped,
        unmatched_by={**matching.unmatched_by, "impossible": dropped},
        method=matching.method if kept else None,
    )


def _is_possible(match: Match, clocks: Clocks) -> bool:
    pairs = list(zip(match.ranks, match.records, strict=True))
    last_arrival = max(clocks.correct(rank, arrival_ns(record)) for rank, record in pairs)
    first_end = min(clocks.correct(rank, record.end_unix_ns) for rank, record in pairs)
    return first_end >= last_arrival - TOLERANCE_NS
