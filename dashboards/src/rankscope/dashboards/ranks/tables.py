"""Tables of all ranks and of all hosts."""

from __future__ import annotations

from typing import Any, Final

from rankscope.analysis.hang.hang_wording import doing_text
from rankscope.analysis.result.analysis import Analysis, RankResult
from rankscope.analysis.result.hosts import hosts_of
from rankscope.base.text import ranges_text
from rankscope.dashboards.data.hosts import WORST_RANK
from rankscope.dashboards.model.columns import Column, number_column, text_column
from rankscope.dashboards.words.wording import milliseconds

COLUMNS: Final[list[Column]] = [
    number_column("rank", "Rank", "Global rank", digits=0, width=92, pinned=True),
    number_column("own_ms", "Own ms, median", "Step time minus time blocked on other ranks", width=140),
    number_column("blocked_ms", "Blocked ms, median", "Time of a step spent waiting for other ranks", width=160),
    number_column("wall_ms", "Wall ms, median", "Time of a step: the device's where it is known, else the host's", width=140),
    number_column(
        "imposed_percent", "Imposed %", "Share of all waiting that was for this rank", digits=1, width=116, if_known=True
    ),
    text_column("host", "Host"),
    text_column("gpu", "GPU", hover=True, if_known=True),
    number_column("steps", "Steps", "Steps with evidence", digits=0, width=92),
    number_column("profiled_ms", "Profiled ms", "Mean time of a profiled step", width=124, if_known=True),
    number_column("compute_ms", "Compute ms", "Mean per profiled step, also while communicating", width=130, if_known=True),
    number_column("exposed_communication_ms", "Exposed comm. ms", "Mean per profiled step", width=150, if_known=True),
    number_column("overlap_percent", "Overlap %", "Share of communication that compute hid", digits=1, if_known=True),
    number_column("idle_ms", "Idle ms", "Mean per profiled step", if_known=True),
    number_column("wait_ms", "Wait ms", "In collectives, without the transfer; mean per profiled step", if_known=True),
    text_column("doing", "Now", width=430, hover=True, if_known=True),
    text_column("end", "Ended", width=110, if_known=True),
]


def rank_table(analysis: Analysis) -> list[dict[str, Any]]:
    """Return a row per rank; times in milliseconds, ``None`` if unknown."""
    imposed = {row.rank: row.share for row in analysis.imposed_wait if analysis.verdict.ranks}
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
            "imposed_percent": _percent(imposed.get(rank.rank)),
            "profiled_ms": _per_step(rank, rank.window_us),
            "compute_ms": _per_step(rank, rank.compute_us),
            "exposed_communication_ms": _per_step(rank, rank.exposed_communication_us),
            "overlap_percent": _percent(rank.overlap_ratio),
            "idle_ms": _per_step(rank, rank.idle_us),
            "wait_ms": _per_step(rank, rank.wait_us),
            "doing": None if rank.activity is None else doing_text(rank.activity),
            "end": rank.end_reason,
        }
        for rank in analysis.ranks
    ]


HOST_COLUMNS: Final[list[Column]] = [
    text_column("host", "Host", width=180, pinned=True, hover=True),
    number_column("count", "Ranks", "Ranks on the host", digits=0, width=92),
    text_column("ranks", "Which", width=130, hover=True),
    text_column("at_fault", "At fault", width=100, if_known=True),
    number_column("own_ms", "Own ms, median", "Median over its ranks of their median own times", width=140),
    number_column("worst_ms", "Worst own ms", "Median own time of its worst rank", width=140),
    number_column("worst", "Worst rank", WORST_RANK, digits=0, width=120),
    number_column("blocked_ms", "Blocked ms, median", "Median over its ranks", width=160),
    number_column("wall_ms", "Wall ms, median", "Median over its ranks", width=140),
    number_column(
        "imposed_percent", "Imposed %", "Share of all waiting that was for its ranks", digits=1, width=116, if_known=True
    ),
    number_column("steps", "Steps", "Steps with evidence", digits=0, width=92),
]


def host_table(analysis: Analysis) -> list[dict[str, Any]]:
    """Return a row per host, whose id is the rank to pick: its worst."""
    return [
        {
            "id": str(host.worst),
            "host": host.host,
            "count": len(host.ranks),
            "ranks": ranges_text(host.ranks),
            "at_fault": "yes" if host.at_fault else None,
            "own_ms": milliseconds(host.own_us),
            "worst_ms": milliseconds(host.worst_own_us),
            "worst": host.worst,
            "blocked_ms": milliseconds(host.blocked_us),
            "wall_ms": milliseconds(host.wall_us),
            "imposed_percent": _percent(host.imposed_share) if analysis.verdict.ranks else None,
            "steps": host.steps,
        }
        for host in hosts_of(analysis)
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _per_step(rank: RankResult, us: float | None) -> float | None:
    """Return the mean per profiled step of a sum over them, in milliseconds."""
    return None if us is None or not rank.profiled_steps else us / rank.profiled_steps / 1e3
