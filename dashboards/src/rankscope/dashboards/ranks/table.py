"""Table of all ranks, which can be sorted, filtered and saved."""

from __future__ import annotations

from typing import Any, Final

from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.model.page import Column, number_column, text_column
from rankscope.dashboards.words.wording import milliseconds

COLUMNS: Final[list[Column]] = [
    number_column("rank", "Rank", "Global rank", digits=0, width=92, pinned=True),
    number_column("own_ms", "Own ms", "Median per step: wall time minus time blocked on other ranks"),
    number_column("blocked_ms", "Blocked ms", "Median per step: time spent waiting for other ranks", width=124),
    number_column("wall_ms", "Wall ms", "Median time of a step: the device's where it is known, else the host's"),
    number_column("imposed_ms", "Imposed ms", "How long the other ranks waited for this one, summed over them", width=124),
    text_column("host", "Host"),
    text_column("gpu", "GPU", hover=True),
    number_column("steps", "Steps", "Steps with evidence", digits=0, width=92),
    number_column("compute_ms", "Compute ms", "Over the profiled steps, communication at the same time included", width=124),
    number_column(
        "exposed_communication_ms", "Exposed comm. ms", "Communication that no compute hid, over the profiled steps", width=150
    ),
    number_column("overlap_percent", "Overlap %", "Share of communication hidden behind compute", digits=1, width=116),
    number_column("idle_ms", "Idle ms", "Neither compute, communication nor copies, over the profiled steps"),
    number_column("wait_ms", "Wait ms", "Time in matched collectives beyond the transfer itself"),
    text_column("end", "Ended", width=110),
]


def rank_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Return a row per rank; times in milliseconds, ``None`` if unknown."""
    imposed = {row.rank: row.imposed_us for row in analysis.imposed_wait}
    return [
        {
            "id": str(rank.rank),
            "rank": rank.rank,
            "host": rank.host,
            "gpu": rank.gpu_uuid,
            "steps": rank.steps,
            "own_ms": milliseconds(rank.own_us),
            "blocked_ms": milliseconds(rank.blocked_us),
            "wall_ms": milliseconds(rank.wall_us),
            "imposed_ms": milliseconds(imposed.get(rank.rank)),
            "compute_ms": milliseconds(rank.compute_us),
            "exposed_communication_ms": milliseconds(rank.exposed_communication_us),
            "overlap_percent": None if rank.overlap_ratio is None else 100 * rank.overlap_ratio,
            "idle_ms": milliseconds(rank.idle_us),
            "wait_ms": milliseconds(rank.wait_us),
            "end": rank.end_reason,
        }
        for rank in analysis.ranks
    ]
