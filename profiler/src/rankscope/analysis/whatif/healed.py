"""What ranks and hosts save by the own times that the judge compares: the numbers of the verdict (``inference.healing``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rankscope.analysis.inference.judging.excess import mean_excess
from rankscope.analysis.inference.judging.healing import Healing, rows_by_host, taking_part
from rankscope.analysis.inference.judging.job_judgement import Bound, Times, unbounded
from rankscope.analysis.inference.judging.late_ranks import late_times
from rankscope.analysis.inference.profiled_steps import Profile
from rankscope.analysis.whatif.outcome import slowest_count


class HealingSavings:
    """Savings of ranks that do the same work, and of the hosts of several of them."""

    def __init__(
        self, times: Times, hosts: Mapping[int, str], at_most_us: Bound[Times] = unbounded, *, per_step: float = 1.0
    ) -> None:
        """``hosts``: host of each rank, where known. ``per_step``: factor from the steps of ``times`` to all steps."""
        self.ranks = times.ranks
        excess = mean_excess(times.own, np.arange(len(self.ranks)))
        self.hosts = {
            host: [self.ranks[row] for row in taking_part(excess, rows) or rows]
            for host, rows in rows_by_host(self.ranks, hosts).items()
        }
        """Ranks of each host that take part in its slowness; all where none does."""
        self._excess = dict(zip(self.ranks, excess.tolist(), strict=True))
        self._healing = Healing(times, max([slowest_count(len(self.ranks)), *map(len, self.hosts.values())]), many_calls=True)
        self._at_most_us: Callable[[Sequence[int]], float] = lambda ranks: at_most_us(ranks, times)
        self._per_step = per_step

    def saves_us(self, ranks: Sequence[int]) -> float:
        """Return the time per step that healing ``ranks`` saves: at most the slowest 3 %, or those of a host."""
        worst_first = sorted(ranks, key=lambda rank: -self._excess[rank])
        gain_us = self._healing.gain(np.isin(self.ranks, ranks)).mean_us
        return min(gain_us, self._at_most_us(worst_first)) * self._per_step


def healed_of_profile(profile: Profile, steps: int) -> list[HealingSavings]:
    """Return the savings in ``steps`` profiled steps of each group of ranks that is judged by its steps.

    They are by own times of the devices, or by lateness at collectives if the verdict is. Empty where single collectives are
    judged, of too few steps.
    """
    judgement = profile.judge()
    if judgement.straggler is None or judgement.straggler.times is not None:
        bound = profile.bound()
        return [HealingSavings(group.times, profile.hosts, bound) for group in judgement.groups]
    late = late_times(profile.blame, profile.window_us)
    if late is None or not late.by_steps:
        return []
    return [HealingSavings(late, profile.hosts, per_step=len(late.steps) / steps)]
