"""Time that healing ranks saves, by the collectives at which the others wait for them.

A rank that comes last delays the others by its lead over the rank that comes next, not over the typical one. Delays of different
ranks at different collectives of a step add up. So the saving is computed at each collective: a comparison of whole steps would
find that the rank with the second longest step takes as long as the slow one, although both delay the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.blame import Blame


@dataclass(frozen=True, slots=True)
class Savings:
    """Savings of the ranks ``ranks`` at the steps ``steps``; rows are places in ``ranks``."""

    blame: Blame
    ranks: Sequence[int]
    steps: Sequence[int]

    def together(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Return the mean time that the other ranks of the job save at each step, were the ranks in ``rows`` healed, [steps]."""
        blame = self.blame
        healed = np.isin(blame.ranks, [self.ranks[row] for row in rows])
        charged = blame.gain_us[:, healed].sum(axis=1)
        every = blame.gain_us.sum(axis=1)
        # Of several slow ranks, all are ahead of the next one, but the gain is only that of the last over the next of them.
        waited = np.where(np.isnan(blame.waited_us[:, ~healed]), np.inf, blame.waited_us[:, ~healed])
        ahead = waited.min(axis=1, initial=np.inf)
        own = np.divide(charged, every, out=np.ones_like(every), where=every > 0)
        sooner = np.where(np.isfinite(ahead) & (ahead > 0), np.where(np.isfinite(ahead), ahead, 0.0) * own, charged)
        exposed = np.minimum(sooner[:, None], blame.exposed_at_us[:, ~healed])
        return self._by_step(np.nansum(exposed, axis=1) / max(1, int((~healed).sum())))

    def each(self) -> NDArray[np.float64]:
        """Return the same for each rank alone, [ranks, steps]."""
        blame, others = self.blame, max(1, len(self.blame.ranks) - 1)
        saved = np.zeros((len(self.ranks), len(self.steps)))
        for row, rank in enumerate(self.ranks):
            column = blame.ranks.index(rank)
            at = np.flatnonzero(blame.gain_us[:, column])
            if len(at):
                exposed = np.minimum(blame.gain_us[at, column, None], blame.exposed_at_us[at])
                exposed[:, column] = 0.0
                saved[row] = self._by_step(np.nansum(exposed, axis=1) / others, at)
        return saved

    def _by_step(self, values: NDArray[np.float64], at: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.float64]:
        """Sum the values of the instances ``at`` over each step, [steps]."""
        wanted = np.asarray(self.steps)
        found = self.blame.instance_step[at]
        place = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
        inside = wanted[place] == found
        return np.bincount(place[inside], weights=values[inside], minlength=len(wanted)).astype(np.float64)
