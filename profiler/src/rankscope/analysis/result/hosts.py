"""Results of ranks, summed up per host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from rankscope.analysis.result.analysis import Analysis, RankResult
from rankscope.analysis.statistics import middle


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """Result of the ranks of one host. Times are microseconds per step; ``None``: not known."""

    host: str
    ranks: list[int]
    """Ascending."""
    at_fault: bool
    """True for a host that the verdict names as a whole."""
    own_us: float | None
    """Median over the ranks of their median own times."""
    blocked_us: float | None
    wall_us: float | None
    worst: int
    """Rank that stands for the host (``worst_ranks``)."""
    worst_own_us: float | None
    """Its median own time."""
    imposed_us: float | None
    """Wait that the ranks of the host imposed, on each other, too."""
    imposed_share: float | None
    """Share of all imposed wait."""
    steps: int
    """Number of steps with evidence of the rank that has most."""


def worst_ranks(analysis: Analysis, units: Iterable[Collection[int]]) -> list[int]:
    """Return the rank that stands for each unit, a host or another set of ranks, in all tables, figures and clicks.

    It is the rank that the verdict names first; else, of the ranks at fault or else of all, the one with the longest own time,
    where that is not known the one that imposed most wait. Of equal ranks it is the lowest. Pipeline stages differ by their work,
    so own time is then that above the median of the rank's stage.
    """
    verdict, imposed = analysis.verdict, {row.rank: row.imposed_us for row in analysis.imposed_wait}
    own, at_fault = _own_above_stage(analysis), set(verdict.ranks)

    def order(rank: int) -> tuple[bool, bool, float, float, int]:
        return rank == verdict.rank, rank in at_fault, own.get(rank, -inf), imposed.get(rank, 0.0), -rank

    return [max(unit, key=order) for unit in units]


def _own_above_stage(analysis: Analysis) -> dict[int, float]:
    own = {row.rank: row.own_us for row in analysis.ranks if row.own_us is not None}
    stages = [] if analysis.pipeline is None else analysis.pipeline.stages
    for stage in stages:
        if ranks := [rank for rank in stage.ranks if rank in own]:
            usual = median(own[rank] for rank in ranks)
            own |= {rank: own[rank] - usual for rank in ranks}
    return own


def hosts_of(analysis: Analysis) -> list[HostResult]:
    """Return the hosts of the ranks in the order of their first ranks. Ranks whose host is not known are left out."""
    by_host: dict[str, list[RankResult]] = {}
    for row in analysis.ranks:
        if row.host is not None:
            by_host.setdefault(row.host, []).append(row)
    imposed = {row.rank: row.imposed_us for row in analysis.imposed_wait}
    total = sum(imposed.values())
    at_fault = set(analysis.verdict.hosts)
    worst = worst_ranks(analysis, [[row.rank for row in rows] for rows in by_host.values()])
    return [
        _host(host, rows, rank, imposed, total, at_fault=host in at_fault)
        for (host, rows), rank in zip(by_host.items(), worst, strict=True)
    ]


def _host(
    host: str, rows: Sequence[RankResult], worst: int, imposed: dict[int, float], total: float, *, at_fault: bool
) -> HostResult:
    imposed_times = [imposed[row.rank] for row in rows if row.rank in imposed]
    return HostResult(
        host=host,
        ranks=sorted(row.rank for row in rows),
        at_fault=at_fault,
        own_us=middle(row.own_us for row in rows),
        blocked_us=middle(row.blocked_us for row in rows),
        wall_us=middle(row.wall_us for row in rows),
        worst=worst,
        worst_own_us=next(row.own_us for row in rows if row.rank == worst),
        imposed_us=sum(imposed_times) if imposed_times else None,
        imposed_share=sum(imposed_times) / total if imposed_times and total > 0 else None,
        steps=max(row.steps for row in rows),
    )
