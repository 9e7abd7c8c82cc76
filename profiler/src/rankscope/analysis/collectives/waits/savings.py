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
        waits, ranks = self.blame.waits, self.blame.ranks
        if not len(waits):
            return np.zeros(len(self.steps))
        healed = np.isin(ranks, [self.ranks[row] for row in rows])
        every = sums(waits.gain_of, waits.gain_us, len(waits))
        charged = sums(waits.gain_of, waits.gain_us * healed[waits.gain_by], len(waits))
        # Of several slow ranks, all are ahead of the next one, but the gain is only that of the last over the next of them.
        ahead = np.minimum.reduceat(np.where(healed[waits.member], np.inf, waits.waited_us), waits.first[:-1])
        own = np.divide(charged, every, out=np.ones_like(every), where=every > 0)
        sooner = np.where(np.isfinite(ahead) & (ahead > 0), np.where(np.isfinite(ahead), ahead, 0.0) * own, charged)
        exposed = np.where(healed[waits.member], 0.0, np.minimum(sooner[waits.instance], waits.exposed_us))
        step, inside = self._places(waits.step[waits.instance])
        return sums(step[inside], exposed[inside], len(self.steps)) / max(1, int((~healed).sum()))

    def each(self) -> Floats:
        """Return the same for each rank alone, [ranks, steps]."""
        waits, others = self.blame.waits, max(1, len(self.blame.ranks) - 1)
        row = np.full(len(self.blame.ranks), -1)
        row[np.searchsorted(self.blame.ranks, self.ranks)] = np.arange(len(self.ranks))
        wanted = np.flatnonzero(row[waits.gain_by] >= 0)
        of = waits.gain_of[wanted]
        count = np.diff(waits.first)[of]
        first = offsets(count)
        arrival = np.repeat(waits.first[of] - first[:-1], count) + np.arange(int(first[-1]))
        by = np.repeat(waits.gain_by[wanted], count)
        exposed = np.minimum(np.repeat(waits.gain_us[wanted], count), waits.exposed_us[arrival])
        step, inside = self._places(np.repeat(waits.step[of], count))
        inside &= waits.member[arrival] != by
        place = row[by[inside]] * len(self.steps) + step[inside]
        saved = sums(place, exposed[inside], len(self.ranks) * len(self.steps)) / others
        return saved.reshape(len(self.ranks), len(self.steps))

    def _places(self, step: Numbers) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Return the place of each of these steps in ``steps``, and whether it is there."""
        place = np.minimum(np.searchsorted(self.steps, step), len(self.steps) - 1)
        return place, np.asarray(self.steps)[place] == step
