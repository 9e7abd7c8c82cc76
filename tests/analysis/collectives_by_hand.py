"""Hand-written collectives, with times in microseconds on one clock unless a shift is given, and windows of steps."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.collectives.arrivals import Arrivals, Floats
from rankscope.analysis.collectives.clock import consistent, fit_clocks
from rankscope.analysis.collectives.matching import Matching, match_collectives
from rankscope.analysis.collectives.waits.blame import CollectiveWaits
from rankscope.analysis.collectives.waits.waiting import Waits, waits_of
from rankscope.runs.records import CollectiveRecord

ByRank = dict[int, list[CollectiveRecord]]


def record(arrive: float, end: float, **fields: Any) -> CollectiveRecord:
    """Return one rank's record of a kernel from ``arrive`` to ``end``; ``stream=None`` for a record of a CPU thread."""
    given = {"step": 0, "group": "0", "index": 0, "op": "all_reduce", "stream": 7, "p2p": fields.get("op") in {"send", "recv"}}
    times = {
        "enqueue_unix_ns": round(arrive * 1000),
        "start_unix_ns": round(arrive * 1000),
        "end_unix_ns": round(end * 1000),
    }
    return CollectiveRecord(**{**given, **times, **fields})


def matched(*rows: dict[int, CollectiveRecord]) -> Arrivals:
    """Match collectives of which each is given by the records of its ranks."""
    by_rank: ByRank = {rank: [] for rank in sorted({rank for row in rows for rank in row})}
    for number, row in enumerate(rows):
        for rank, value in row.items():
            by_rank[rank].append(msgspec.structs.replace(value, index=number, group_ranks=sorted(row)))
    matches = match_collectives(by_rank).matches
    assert len(matches) == len(rows)
    return matches


def collective_waits(steps: list[int], gain_us: Floats, waited_us: Floats) -> CollectiveWaits:
    """Return the waits of collectives of all ranks from [collectives, ranks]; nothing hides them."""
    count, ranks = gain_us.shape
    instance, rank = np.nonzero(gain_us)
    return CollectiveWaits(
        step=np.array(steps, dtype=np.int64),
        first=np.arange(count + 1) * ranks,
        member=np.tile(np.arange(ranks), count),
        waited_us=waited_us.ravel(),
        exposed_us=waited_us.ravel(),
        gain_of=instance,
        gain_by=rank,
        gain_us=gain_us[instance, rank],
    )


def numbered(rows: list[CollectiveRecord]) -> list[CollectiveRecord]:
    """Number the records of one rank in the order given."""
    return [msgspec.structs.replace(row, index=index) for index, row in enumerate(rows)]


def judged(by_rank: ByRank, *, world_size: int | None = None, hosts: dict[int, str] | None = None) -> tuple[Matching, Waits]:
    """Match the collectives, fit clocks and find the waits of directed operations. All ranks are on one host by default."""
    hosts = dict.fromkeys(by_rank, "n0") if hosts is None else hosts
    matching = match_collectives(by_rank, world_size=world_size)
    clocks = fit_clocks(matching.matches, hosts)
    matching = consistent(matching, clocks)
    return matching, waits_of(matching, clocks, hosts)
