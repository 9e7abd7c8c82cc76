"""Time that healing ranks saves, by the collectives at which the others wait for them.

A rank that comes last delays the others by its lead over the rank that comes next, not over the typical one. Delays of different
ranks at different collectives of a step add up. So the saving is computed at each collective: a comparison of whole steps would
find that the rank with the second longest step takes as long as the slow one, although both delay the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.collectives.arrivals import Floats, Numbers, offsets, sums
from rankscope.analysis.collectives.waits.blame import Blame


@dataclass(frozen=True, slots=True)
class Savings:
    """Savings of the ranks ``ranks`` at the steps ``steps``; rows are places in ``ranks``."""

    blame: Blame
    ranks: Sequence[int]
    steps: Sequence[int]

    def together(self, rows: Sequence[int]) -> Floats:
        """Return the mean time that the other ranks of the job save at each step, were the ranks in ``rows`` healed, [steps]."""
        at, ranks = self.blame.at, self.blame.ranks
        if not len(at):
            return np.zeros(len(self.steps))
        healed = np.isin(ranks, [self.ranks[row] for row in rows])
        every = sums(at.gain_of, at.gain_us, len(at))
        charged = sums(at.gain_of, at.gain_us * healed[at.gain_by], len(at))
        # Of several slow ranks, all are ahead of the next one, but the gain is only that of the last over the next of them.
        ahead = np.minimum.reduceat(np.where(healed[at.member], np.inf, at.waited_us), at.first[:-1])
        own = np.divide(charged, every, out=np.ones_like(every), where=every > 0)
        sooner = np.where(np.isfinite(ahead) & (ahead > 0), np.where(np.isfinite(ahead), ahead, 0.0) * own, charged)
        exposed = np.where(healed[at.member], 0.0, np.minimum(sooner[at.instance], at.exposed_us))
        step, inside = self._places(at.step[at.instance])
        return sums(step[inside], exposed[inside], len(self.steps)) / max(1, int((~healed).sum()))

    def each(self) -> Floats:
        """Return the same for each rank alone, [ranks, steps]."""
        at, others = self.blame.at, max(1, len(self.blame.ranks) - 1)
        row = np.full(len(self.blame.ranks), -1)
        row[np.searchsorted(self.blame.ranks, self.ranks)] = np.arange(len(self.ranks))
        wanted = np.flatnonzero(row[at.gain_by] >= 0)
        of = at.gain_of[wanted]
        count = np.diff(at.first)[of]
        first = offsets(count)
        arrival = np.repeat(at.first[of] - first[:-1], count) + np.arange(int(first[-1]))
        by = np.repeat(at.gain_by[wanted], count)
        exposed = np.minimum(np.repeat(at.gain_us[wanted], count), at.exposed_us[arrival])
        step, inside = self._places(np.repeat(at.step[of], count))
        inside &= at.member[arrival] != by
        place = row[by[inside]] * len(self.steps) + step[inside]
        saved = sums(place, exposed[inside], len(self.ranks) * len(self.steps)) / others
        return saved.reshape(len(self.ranks), len(self.steps))

    def _places(self, step: Numbers) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Return the place of each of these steps in ``steps``, and whether it is there."""
        place = np.minimum(np.searchsorted(self.steps, step), len(self.steps) - 1)
        return place, np.asarray(self.steps)[place] == step
