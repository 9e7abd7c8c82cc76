"""Names of the bars of ranks, and of hosts, for each of which one of its ranks stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.charts.frame import marked_label, rank_label
from rankscope.dashboards.data.hosts import UNKNOWN_HOST, blamed_hosts, blamed_ranks, host_labels, known_hosts, rows_by_host
from rankscope.dashboards.words.inert import plotly_text

LONGEST_LABEL: Final = 28
"""Maximum characters of a name at the axis. Hover text has all of it."""


@dataclass(frozen=True, slots=True)
class BarNames:
    """Names and marks of bars. ``by_host``: the bar of a rank is that of its host, and ``blamed`` has hosts."""

    hosts: Mapping[int, str] = field(default_factory=dict)
    by_host: bool = False
    blamed: Collection[int | str] = ()
    picked: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Names of hosts at the axis, where these are shorter."""

    @property
    def row_kind(self) -> str:
        """What the bars are: ``rank`` or ``host``."""
        return "host" if self.by_host else "rank"

    def host(self, rank: int) -> str:
        """Return the host of a rank."""
        return self.hosts.get(rank, UNKNOWN_HOST)

    def item(self, rank: int) -> int | str:
        """Return rank or host, as tables show it."""
        return self.host(rank) if self.by_host else rank

    def text(self, rank: int) -> str:
        """Return the hover text of a bar, with the host of a rank."""
        if self.by_host:
            return f"host {plotly_text(self.host(rank))}"
        return f"rank {rank} on {plotly_text(self.hosts[rank])}" if rank in self.hosts else f"rank {rank}"

    def is_blamed(self, rank: int) -> bool:
        """Return whether the verdict blames a bar's rank or host."""
        return self.item(rank) in self.blamed

    def is_picked(self, rank: int) -> bool:
        """Return whether a bar's rank is picked, or a rank of its host."""
        return self.picked is not None and self.item(rank) == self.item(self.picked)

    def label(self, rank: int) -> str:
        """Return the label of a bar at the axis."""
        if not self.by_host:
            return rank_label(rank, [rank] if self.is_blamed(rank) else [], self.picked)
        name = plotly_text(self.labels.get(self.host(rank), self.host(rank)), LONGEST_LABEL)
        return marked_label(name, blamed=self.is_blamed(rank), picked=self.is_picked(rank))


PLAIN: Final = BarNames()
"""Names of ranks whose hosts are not known."""


def bar_names(analysis: Analysis, rows: str | None, picked: int | None) -> BarNames:
    """Return the names of the bars of a run. ``rows``: the choice between ranks and hosts."""
    by_host = rows_by_host(analysis, rows)
    blamed: Collection[int | str] = blamed_hosts(analysis) if by_host else blamed_ranks(analysis.verdict)
    hosts = known_hosts(analysis)
    return BarNames(hosts, by_host, blamed, picked, host_labels(hosts.values()))
