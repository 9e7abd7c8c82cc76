"""Wait attribution from the always-on step records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.collectives.blame import Group, Row
from rankscope.analysis.costs.ledger import ledger_of
from rankscope.analysis.inference.own_time import Judged, waits
from rankscope.analysis.result.costs import Ledger


def ledger_of_steps(compared: Sequence[Judged]) -> Ledger | None:
    """Return the wait attribution from own times of the ranks that can be compared; ``None`` if none can.

    At each step the rank with the longest own time is charged. The training thread does nothing else during blocked time, so all
    of it is exposed.
    """
    if not compared:
        return None
    groups: dict[Group, dict[tuple[int, int], Row]] = {}
    for judged in compared:
        last, wait = waits(judged)
        rows: dict[tuple[int, int], Row] = {}
        for at in np.unique(last):
            mine = wait[:, last == at]
            total, count = mine.sum(axis=1), (mine > 0).sum(axis=1)
            for victim in np.flatnonzero(total > 0):
                rows[judged.ranks[at], judged.ranks[victim]] = (float(total[victim]), float(total[victim]), int(count[victim]))
        groups[None, tuple(judged.ranks)] = rows
    return ledger_of(groups, "steps", max(judged.own.shape[1] for judged in compared))
