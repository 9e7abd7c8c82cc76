"""Collectives as slices, with each rank's wait in them and arrows from the last rank to arrive.

The wait is the time by which a rank arrived before the last one, as in the verdict (``waits_for_last``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rankscope.analysis.collectives.arrivals import Arrivals, Match, arrival_ns
from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.waits.blame import next_to_last, waits_for_last
from rankscope.analysis.operations import operation
from rankscope.analysis.perfetto.chrome_json import Thread, TraceWriter
from rankscope.runs.records import CollectiveRecord

MAX_ARROWS: Final = 10_000
"""Maximum number of arrows: more slow a browser down."""

WEIGHT: Final = 2
"""Number of events of a collective: the slice itself and the wait in it."""

CollectiveKey = tuple[int, int, str, tuple[int, ...] | None, int]


@dataclass(frozen=True, slots=True)
class RankWait:
    """Wait and transfer time of one rank in a matched collective."""

    transfer_us: float
    wait_us: float
    last: int | None
    """Rank that arrived last; ``None`` if it did by no more than the clocks' residual."""


@dataclass(frozen=True, slots=True)
class SlicePosition:
    """Position of the slice of a collective: its thread, and its times on the common clock."""

    thread: Thread
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Arrow:
    """Arrow from the last rank to arrive to a rank that waited."""

    wait_us: float
    begin: CollectiveKey
    end: CollectiveKey
    at_ns: int


def collective_key(rank: int, record: CollectiveRecord) -> CollectiveKey:
    """Return the key that identifies a collective among those of all ranks."""
    return (rank, record.step, record.group, tuple(record.group_ranks) if record.group_ranks else None, record.index)


def waiting_of(matches: Arrivals, clocks: Clocks) -> Iterator[tuple[Match, dict[int, RankWait]]]:
    """Yield each match with the wait of each of its ranks."""
    last, wait = waits_for_last(matches, clocks)
    is_clear = wait[next_to_last(matches, last, wait)] > (clocks.residual_ns or 0.0)
    waits_us = iter((wait / 1000).tolist())
    columns = (matches.shortest_ns / 1000).tolist(), matches.rank[last].tolist(), is_clear.tolist()
    for match, transfer_us, last_rank, clear in zip(matches, *columns, strict=True):
        yield match, {rank: RankWait(transfer_us, next(waits_us), last_rank if clear else None) for rank in match.ranks}


def find_arrows(matches: Arrivals, clocks: Clocks, shown: Mapping[CollectiveKey, SlicePosition]) -> list[Arrow]:
    """Return the arrows between slices that are shown, the longest wait first."""
    arrows: list[Arrow] = []
    for match, waiting in waiting_of(matches, clocks):
        keys = {rank: collective_key(rank, record) for rank, record in zip(match.ranks, match.records, strict=True)}
        for rank, waited in waiting.items():
            if waited.last is None or rank == waited.last or waited.wait_us * 1000 <= (clocks.residual_ns or 0.0):
                continue
            begin, end = shown.get(keys[waited.last]), shown.get(keys[rank])
            # At the last arrival both slices must be open; if the clocks contradict that, no arrow is drawn.
            if begin is not None and end is not None and end.start_ns <= begin.start_ns < min(begin.end_ns, end.end_ns):
                arrows.append(Arrow(waited.wait_us, keys[waited.last], keys[rank], begin.start_ns))
    return sorted(arrows, key=lambda arrow: (-arrow.wait_us, arrow.at_ns, arrow.begin[0], arrow.end[0]))


def write_collectives(
    writer: TraceWriter,
    pid: int,
    rank: int,
    records: Sequence[CollectiveRecord],
    waiting: Mapping[CollectiveKey, RankWait],
    *,
    clocks: Clocks,
) -> dict[CollectiveKey, SlicePosition]:
    """Write the tracks of one rank, one per process group; returns the position of each collective's slice."""
    places: dict[CollectiveKey, SlicePosition] = {}
    groups: dict[tuple[str, tuple[int, ...]], list[CollectiveRecord]] = {}
    for record in records:
        groups.setdefault((record.group, tuple(record.group_ranks or ())), []).append(record)
    residual_us = (clocks.residual_ns or 0.0) / 1000
    for (group, members), rows in sorted(groups.items()):
        size = len(members) or rows[0].group_size
        track = writer.track(pid, f"collectives of {group}" + (f" ({size} ranks)" if size else ""), nest=False)
        spans = [(clocks.correct(rank, arrival_ns(row)), clocks.correct(rank, row.end_unix_ns), row) for row in rows]
        for start, end, record in sorted(spans, key=lambda span: (span[0], -span[1], span[2].index)):
            key = collective_key(rank, record)
            waited = waiting.get(key)
            thread = track.slice(record.op, start, end, _args(record, waited), kind="collective")
            if thread is None:
                continue
            places[key] = SlicePosition(thread, start, end)
            if waited is not None and waited.last not in (None, rank) and waited.wait_us > residual_us:
                until = min(end, start + round(waited.wait_us * 1000))
                # Nested in the collective's slice: no other slice of this track overlaps that.
                writer.slice(thread, f"waiting for rank {waited.last}", start, until, kind="wait")
    return places


def _args(record: CollectiveRecord, waited: RankWait | None) -> dict[str, Any]:
    args: dict[str, Any] = {"op": record.op, "group": record.group, "step": record.step, "index": record.index}
    optional = {"bytes": record.bytes, "dtype": record.dtype, "sequence": record.sequence, "stream": record.stream}
    args |= {name: value for name, value in optional.items() if value is not None}
    if record.group_ranks:
        args["ranks"] = record.group_ranks
    args["enqueued_us_before_start"] = (record.start_unix_ns - record.enqueue_unix_ns) / 1000
    args["compute_inside_us"] = sum(end - start for start, end in record.compute_spans_us)
    if waited is None:
        args["matched"] = ("p2p" if record.p2p else operation(record.op).excluded) or "no: not found on all ranks of its group"
        return args
    args |= {"transfer_us": waited.transfer_us, "wait_us": waited.wait_us}
    args["last_to_arrive"] = "too close to tell" if waited.last is None else waited.last
    return args
