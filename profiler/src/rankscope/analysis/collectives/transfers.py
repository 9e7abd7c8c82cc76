"""Parts of a rank's communication: moving data or waiting for later ranks, overlapped by compute or exposed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matching import Match
from rankscope.analysis.collectives.waiting import clock_islands
from rankscope.analysis.result.detail import CommunicationPart
from rankscope.analysis.trace.intervals import Spans, intersect, join, measure, subtract, union
from rankscope.runs.records import StepBreakdown


class _Spans(msgspec.Struct):
    """Unmerged intervals of one rank in nanoseconds, over all of its matched collectives."""

    transfers: list[tuple[int, int]] = msgspec.field(default_factory=list)
    waits: list[tuple[int, int]] = msgspec.field(default_factory=list)
    compute: list[tuple[int, int]] = msgspec.field(default_factory=list)


def communication_parts(
    matches: Iterable[Match], whole: Mapping[int, tuple[float, float]] | None = None
) -> dict[int, CommunicationPart]:
    """Return the communication parts of each rank that has matched collectives.

    A collective transfers at its end, for as long as it took on the rank that came last; before that it waits. ``whole``: each
    rank's communication and overlap in microseconds, in the window of these collectives; the rest of it is unmatched.
    """
    spans: dict[int, _Spans] = {}
    for match in matches:
        shortest = min(match.inside_ns)
        for rank, record in zip(match.ranks, match.records, strict=True):
            mine = spans.setdefault(rank, _Spans())
            begins = max(record.start_unix_ns, record.end_unix_ns - shortest)
            mine.transfers.append((begins, record.end_unix_ns))
            mine.waits.append((record.start_unix_ns, begins))
            mine.compute += [
                (record.enqueue_unix_ns + round(start * 1000), record.enqueue_unix_ns + round(end * 1000))
                for start, end in record.compute_spans_us
            ]
    return {rank: _part(mine, None if whole is None else whole.get(rank)) for rank, mine in spans.items()}


def explained_share(matches: Iterable[Match], communication_us: Mapping[int, float]) -> float | None:
    """Return the share of the ranks' communication that is in matched collectives, 0 to 1; ``None`` without communication.

    ``communication_us``: communication time of each rank to include, in the window of its collectives.
    """
    total = sum(communication_us.values())
    if total <= 0:
        return None
    spans: dict[int, list[tuple[int, int]]] = {}
    for match in matches:
        for rank, record in zip(match.ranks, match.records, strict=True):
            spans.setdefault(rank, []).append((record.start_unix_ns, record.end_unix_ns))
    matched = (min(measure(_merged(spans.get(rank, []))) / 1000, whole) for rank, whole in communication_us.items())
    return sum(matched) / total


def _part(spans: _Spans, whole: tuple[float, float] | None) -> CommunicationPart:
    busy, transfer = _merged(spans.compute), _merged(spans.transfers)
    wait = subtract(_merged(spans.waits), transfer)
    transfer_overlap, wait_overlap = measure(intersect(transfer, busy)) / 1000, measure(intersect(wait, busy)) / 1000
    matched, matched_overlap = measure(join(transfer, wait)) / 1000, transfer_overlap + wait_overlap
    unmatched_overlap = unmatched_exposed = None
    if whole is not None:
        communication, overlap = whole
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


def _merged(pairs: list[tuple[int, int]]) -> Spans:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


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
