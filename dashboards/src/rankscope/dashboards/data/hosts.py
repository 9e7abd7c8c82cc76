"""Ranks grouped by host, for figures and tables with one row per host."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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


def host_labels(hosts: Iterable[str]) -> dict[str, str]:
    """Return names for axes, without the domain that all hosts share, since axes cut long names at the end."""
    parts = {host: host.split(".") for host in dict.fromkeys(hosts) if host != UNKNOWN_HOST}
    shared = 0
    if len(parts) > 1:
        endings = zip(*(reversed(part[1:]) for part in parts.values()), strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda ending: len(set(ending)) == 1, endings))
    return {host: ".".join(part[: len(part) - shared]) for host, part in parts.items()}


@dataclass(frozen=True, slots=True)
class HostRows:
    """Hosts in display order, and which rows of a matrix of ranks or GPUs they cover."""

    labels: list[str]
    """Names at the axis."""
    names: list[str]
    """Names that have the host, also of an opened row."""
    members: list[list[int]]
    """Rows of the matrix, per host."""

    def reduce(self, values: NDArray[np.floating[Any]], worst: Worst) -> NDArray[np.float32]:
        """Return the worst value per host, [hosts, columns], of values [rows, columns]; NaN if all are missing."""
        reduced = (np.fmin if worst == "lowest" else np.fmax).reduce
        return np.stack([reduced(values[rows], axis=0) for rows in self.members]).astype(np.float32)

    def place(self, row: int | None) -> int | None:
        """Return the place of a row of the matrix if its host is opened, else of its host."""
        return next((at for at, rows in reversed(list(enumerate(self.members))) if row in rows), None)


def host_rows(
    hosts: Sequence[str], names: Sequence[str], order: Sequence[int] | None = None, *, opened: int | None = None
) -> HostRows:
    """Return the hosts of the rows of a matrix, by their first rows in ``order`` (``None``: as given).

    Below the host of the row ``opened`` is each of its rows, with its name.
    """
    rows: dict[str, list[int]] = {}
    for row in range(len(hosts)) if order is None else order:
        rows.setdefault(hosts[row], []).append(row)
    short = host_labels(rows)
    shown: list[tuple[str, str, list[int]]] = []
    for host, of_host in rows.items():
        shown.append((short.get(host, host), host, of_host))
        if opened in of_host:
            shown += [(names[row], f"{names[row]} on {host}", [row]) for row in of_host]
    return HostRows([label for label, _, _ in shown], [name for _, name, _ in shown], [members for _, _, members in shown])


def known_hosts(analysis: Analysis) -> dict[int, str]:
    """Return the hosts of the ranks whose host is known."""
    return {row.rank: row.host for row in analysis.ranks if row.host is not None}


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
