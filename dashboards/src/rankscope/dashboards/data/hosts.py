"""Ranks grouped by host, for figures and tables with one row per host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.analysis import Analysis, Verdict
from rankscope.analysis.result.hosts import hosts_of
from rankscope.dashboards.data.metrics import Worst

UNKNOWN_HOST = "host not known"

WORST_RANK = "The rank at fault, else the one with the longest own time"
"""Help of columns with the rank that stands for a host (``worst_ranks``)."""


@dataclass(frozen=True, slots=True)
class HostRows:
    """Hosts in display order, and the matrix rows of their ranks."""

    names: list[str]
    ranks: list[list[int]]
    """Per host: its ranks."""
    rows: list[list[int]]
    """Per host: rows of the step matrices."""

    def reduce(self, values: NDArray[np.floating[Any]], worst: Worst) -> NDArray[np.float32]:
        """Return the worst value per host, [hosts, steps], of values per rank, [ranks, steps]; NaN if all are missing."""
        reduced = (np.fmin if worst == "lowest" else np.fmax).reduce
        return np.stack([reduced(values[rows], axis=0) for rows in self.rows]).astype(np.float32)

    def of_rank(self, rank: int | None) -> int | None:
        """Return the position of the row of a rank, else of its host."""
        return next((at for at, ranks in reversed(list(enumerate(self.ranks))) if rank in ranks), None)


def host_rows(analysis: Analysis, ranks: Sequence[int], order: Sequence[int] | None, *, opened: int | None = None) -> HostRows:
    """Return the hosts of ``ranks``, those of the step matrices, by their first ranks in ``order`` (rows; ``None``: as given).

    Below the host of the rank ``opened`` is a row for each of its ranks.
    """
    hosts = {row.rank: row.host or UNKNOWN_HOST for row in analysis.ranks}
    rows: dict[str, list[int]] = {}
    for row in range(len(ranks)) if order is None else order:
        rows.setdefault(hosts.get(ranks[row], UNKNOWN_HOST), []).append(row)
    shown: list[tuple[str, list[int]]] = []
    for host, of_host in rows.items():
        shown.append((host, of_host))
        if opened is not None and any(ranks[row] == opened for row in of_host):
            shown += [(f"rank {ranks[row]}", [row]) for row in of_host]
    return HostRows([name for name, _ in shown], [[ranks[row] for row in some] for _, some in shown], [some for _, some in shown])


def several_hosts(analysis: Analysis) -> int:
    """Return the number of hosts; 0 for one host, and for one rank per host, where rows for hosts say no more than for ranks."""
    hosts = hosts_of(analysis)
    return len(hosts) if 1 < len(hosts) < len(analysis.ranks) else 0


def rows_by_host(analysis: Analysis, rows: str | None) -> bool:
    """Return whether figures and tables have one row per host. ``rows``: the choice; by default as the verdict blames."""
    chosen = rows or ("host" if analysis.verdict.hosts else "rank")
    return chosen == "host" and several_hosts(analysis) > 0


def blamed_ranks(verdict: Verdict) -> list[int]:
    """Return the ranks that figures mark: those of whole hosts at fault, else the worst rank."""
    return verdict.ranks if verdict.hosts else [] if verdict.rank is None else [verdict.rank]


def blamed_hosts(analysis: Analysis) -> list[str]:
    """Return the hosts that figures mark: those at fault as a whole, else the host of the worst rank."""
    verdict = analysis.verdict
    if verdict.hosts:
        return verdict.hosts
    return [row.host for row in analysis.ranks if row.rank == verdict.rank and row.host is not None]
