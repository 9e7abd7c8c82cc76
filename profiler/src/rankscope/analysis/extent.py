"""Common extent of ranks: from the first start on any rank to the last end on any rank, on their common clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankscope.analysis.clock import Clocks
from rankscope.analysis.matching import Match
from rankscope.analysis.waiting import clock_islands
from rankscope.runs.records import StepBreakdown


def common_extent(windows: Mapping[int, StepBreakdown], clocks: Clocks) -> tuple[int, int]:
    """Return the first start and the last end of the ranks' windows, in nanoseconds on the common clock."""
    begin = min(clocks.correct(rank, row.start_unix_ns) for rank, row in windows.items())
    finish = max(clocks.correct(rank, row.start_unix_ns + round(row.window_us * 1000)) for rank, row in windows.items())
    return begin, finish


def longest_extent_us(windows: Mapping[int, StepBreakdown], matches: Sequence[Match], clocks: Clocks) -> float:
    """Return the longest common extent, in microseconds, of ranks with a common clock: those that matched collectives link.

    ``windows``: windows of at least one rank. A rank that is in no match counts alone.
    """
    islands = clock_islands(matches, {})
    together: dict[int, dict[int, StepBreakdown]] = {}
    for rank, row in windows.items():
        together.setdefault(islands.get(rank, -1 - rank), {})[rank] = row
    extents = [common_extent(group, clocks) for group in together.values()]
    return max(finish - begin for begin, finish in extents) / 1000
