"""Parts of a rank's communication: moving data or waiting for later ranks, overlapped by compute or exposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.waits.waiting import clock_islands
from rankscope.analysis.result.detail import CommunicationPart
from rankscope.analysis.trace.intervals import Spans, by_key, intersect, join, measure, subtract, union
from rankscope.runs.records import StepBreakdown


def communication_parts(
    matches: Arrivals, totals: Mapping[int, tuple[float, float]] | None = None
) -> dict[int, CommunicationPart]:
    """Return the communication parts of each rank that has matched collectives.

    A collective transfers at its end, for as long as it took on the rank that came last; before that it waits. ``totals``: each
    rank's communication and overlap in microseconds, in the window of these collectives; the rest of it is unmatched.
    """
    start = matches.records.start[matches.row]
    begins = np.maximum(start, matches.end_ns - matches.shortest_ns[matches.instance])
    parts: dict[int, CommunicationPart] = {}
    for rows in by_key(matches.rank):
        rank = int(matches.rank[rows[0]])
        _, busy_start, busy_end = matches.busy(rows)
        transfer = union(begins[rows], matches.end_ns[rows])
        wait = subtract(union(start[rows], begins[rows]), transfer)
        parts[rank] = _part(transfer, wait, union(busy_start, busy_end), None if totals is None else totals.get(rank))
    return parts


def explained_share(matched_groups: Sequence[Arrivals], communication_us: Mapping[int, float]) -> float | None:
    """Return the share of the ranks' communication that is in matched collectives, 0 to 1; ``None`` without communication.

    ``communication_us``: communication time of each rank to include, in the window of its collectives.
    """
    total = sum(communication_us.values())
    if total <= 0:
        return None
    spans: dict[int, list[Spans]] = {}
    for matches in matched_groups:
        start = matches.records.start[matches.row]
        for rows in by_key(matches.rank):
            spans.setdefault(int(matches.rank[rows[0]]), []).append(np.column_stack([start[rows], matches.end_ns[rows]]))
    matched = 0.0
    for rank, total_us in communication_us.items():
        if rank in spans:
            matched += min(measure(join(*spans[rank])) / 1000, total_us)
    return matched / total


def _part(transfer: Spans, wait: Spans, busy: Spans, totals: tuple[float, float] | None) -> CommunicationPart:
    transfer_overlap, wait_overlap = measure(intersect(transfer, busy)) / 1000, measure(intersect(wait, busy)) / 1000
    matched, matched_overlap = measure(join(transfer, wait)) / 1000, transfer_overlap + wait_overlap
    unmatched_overlap = unmatched_exposed = None
    if totals is not None:
        communication, overlap = totals
        # Clamped at 0: microseconds of Unix times are not exact.
        unmatched_overlap = max(0.0, overlap - matched_overlap)
        unmatched_exposed = max(0.0, communication - overlap - (matched - matched_overlap))
    return CommunicationPart(
        transfer_overlap_us=transfer_overlap,
        transfer_exposed_us=measure(transfer) / 1000 - transfer_overlap,
        wait_overlap_us=wait_overlap,
        wait_exposed_us=measure(wait) / 1000 - wait_overlap,
        unmatched_overlap_us=unmatched_overlap,
        unmatched_exposed_us=unmatched_exposed,
    )


def common_extent(windows: Mapping[int, StepBreakdown], clocks: Clocks) -> tuple[int, int]:
    """Return the first start and the last end of the ranks' windows, in nanoseconds on the common clock."""
    begin = min(clocks.correct(rank, row.start_unix_ns) for rank, row in windows.items())
    finish = max(clocks.correct(rank, row.start_unix_ns + round(row.window_us * 1000)) for rank, row in windows.items())
    return begin, finish


def longest_extent_us(windows: Mapping[int, StepBreakdown], matches: Arrivals, clocks: Clocks) -> float:
    """Return the longest common extent, in microseconds, of ranks with a common clock: those that matched collectives link.

    ``windows``: windows of at least one rank. A rank that is in no match counts alone.
    """
    islands = clock_islands(matches, {})
    by_island: dict[int, dict[int, StepBreakdown]] = {}
    for rank, row in windows.items():
        by_island.setdefault(islands.get(rank, -1 - rank), {})[rank] = row
    extents = [common_extent(group, clocks) for group in by_island.values()]
    return max(finish - begin for begin, finish in extents) / 1000
