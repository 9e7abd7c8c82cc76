"""What ranks and hosts save by the own times that the judge compares: the numbers of the verdict (``inference.healing``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.analysis.evidence.compared import OwnTimes
from rankscope.analysis.inference.excess import mean_excess
from rankscope.analysis.inference.healing import Healing, hosts_of, taking_part
from rankscope.analysis.whatif.outcome import slowest_count


class Healed:
    """Savings of ranks that do the same work, and of the hosts of several of them."""

    def __init__(self, times: OwnTimes, hosts: Mapping[int, str], *, per: float = 1.0) -> None:
        """``hosts``: host of each rank, where known. ``per``: steps that the savings of one step of ``times`` are divided by."""
        self.ranks = times.ranks
        excess = mean_excess(times.own, np.arange(len(self.ranks)))
        self.hosts = {
            host: [self.ranks[row] for row in taking_part(excess, rows) or rows]
            for host, rows in hosts_of(self.ranks, hosts).items()
        }
        """Ranks of each host that take part in its slowness; all where none does."""
        self._per = per
        self._healing = Healing(times, max([slowest_count(len(self.ranks)), *map(len, self.hosts.values())]))

    def saves_us(self, ranks: Sequence[int]) -> float:
        """Return the time per step that healing ``ranks`` saves: at most the slowest 3 %, or those of a host."""
        return self._healing.gain(np.isin(self.ranks, ranks)).mean_us / self._per
