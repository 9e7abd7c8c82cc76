"""Results of ranks, summed up per host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rankscope.analysis.result.analysis import Analysis, RankResult


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
    slowest: int | None
    """Rank with the longest median own time."""
    slowest_own_us: float | None
    imposed_us: float | None
    """Wait that the ranks of the host imposed, on each other, too."""
    imposed_share: float | None
    """Share of all imposed wait."""
    steps: int
    """Number of steps with evidence of the rank that has most."""


def hosts_of(analysis: Analysis) -> list[HostResult]:
    """Return the hosts of the ranks in the order of their first ranks. Ranks whose host is not known are left out."""
    by_host: dict[str, list[RankResult]] = {}
    for row in analysis.ranks:
        if row.host is not None:
            by_host.setdefault(row.host, []).append(row)
    imposed = {row.rank: row.imposed_us for row in analysis.imposed_wait}
    total = sum(imposed.values())
    at_fault = set(analysis.verdict.hosts)
    return [_host(host, rows, imposed, total, at_fault=host in at_fault) for host, rows in by_host.items()]


def _host(host: str, rows: Sequence[RankResult], imposed: dict[int, float], total: float, *, at_fault: bool) -> HostResult:
    slowest = max(((row.own_us, -row.rank) for row in rows if row.own_us is not None), default=None)
    theirs = [imposed[row.rank] for row in rows if row.rank in imposed]
    return HostResult(
        host=host,
        ranks=sorted(row.rank for row in rows),
        at_fault=at_fault,
        own_us=_median([row.own_us for row in rows]),
        blocked_us=_median([row.blocked_us for row in rows]),
        wall_us=_median([row.wall_us for row in rows]),
        slowest=None if slowest is None else -slowest[1],
        slowest_own_us=None if slowest is None else slowest[0],
        imposed_us=sum(theirs) if theirs else None,
        imposed_share=sum(theirs) / total if theirs and total > 0 else None,
        steps=max(row.steps for row in rows),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
