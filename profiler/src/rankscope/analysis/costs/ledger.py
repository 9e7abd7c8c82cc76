"""Wait attribution: imposed wait by process group, origin and victim."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.collectives.arrivals import Floats, Numbers, sums
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.waits.imposed import Pairs
from rankscope.analysis.evidence.compared import StepOwnTimes, waits_for_last
from rankscope.analysis.result.costs import (
    MAX_GROUPS,
    MAX_LEDGER_ROWS,
    MAX_RANKS,
    GroupLedger,
    Ledger,
    LedgerRest,
    LedgerRow,
    LedgerSource,
)


def ledger_of_blame(blame: Blame, source: LedgerSource) -> Ledger | None:
    """Return the wait attribution from matched collectives; ``None`` without any."""
    return _ledger(blame.pairs, source, len(blame.steps)) if blame.steps else None


def ledger_of_steps(compared: Sequence[StepOwnTimes]) -> Ledger | None:
    """Return the wait attribution from own times of the ranks that can be compared; ``None`` if none can.

    At each step the rank with the longest own time is charged. The training thread does nothing else during blocked time, so all
    of it is exposed.
    """
    if not compared:
        return None
    columns: list[tuple[Numbers, Numbers, Numbers, Floats, Numbers]] = []
    for number, judged in enumerate(compared):
        last, wait = waits_for_last(judged)
        ranks = np.asarray(judged.ranks)
        for at in np.unique(last):
            wait_for_rank = wait[:, last == at]
            total = wait_for_rank.sum(axis=1)
            victim = np.flatnonzero(total > 0)
            of_group, origin = np.full(len(victim), number), np.full(len(victim), ranks[at])
            columns.append((of_group, origin, ranks[victim], total[victim], (wait_for_rank > 0).sum(axis=1)[victim]))
    group, origin, victim, imposed_us, steps = map(np.concatenate, zip(*columns, strict=True))
    pairs = Pairs([(None, tuple(judged.ranks)) for judged in compared], group, origin, victim, imposed_us, imposed_us, steps)
    return _ledger(pairs, "steps", max(judged.own.shape[1] for judged in compared))


def _ledger(pairs: Pairs, source: LedgerSource, steps: int) -> Ledger:
    """Return the wait attribution from the pairs of all process groups over ``steps`` steps.

    The largest rows are listed one by one, the rest is summed up.
    """
    count = len(pairs.groups)
    imposed, exposed = (sums(pairs.group, us, count) for us in (pairs.imposed_us, pairs.exposed_us))
    # To the nanosecond, because sums of the same waits differ by their rounding.
    sort_keys = [(-round(exposed[at], 3), -round(imposed[at], 3)) for at in range(count)]
    order = sorted(range(count), key=lambda at: (sort_keys[at], pairs.groups[at][0] or "", pairs.groups[at][1]))
    place = np.full(count, count)
    shown = order[:MAX_GROUPS]
    place[shown] = np.arange(len(shown))
    at = np.lexsort((pairs.victim, pairs.origin, place[pairs.group], -pairs.imposed_us, -pairs.exposed_us))
    listed = at[place[pairs.group[at]] < count][:MAX_LEDGER_ROWS]
    columns = (place[pairs.group], pairs.origin, pairs.victim, pairs.imposed_us, pairs.exposed_us, pairs.steps)
    unlisted = len(pairs) - len(listed)
    return Ledger(
        source=source,
        steps=steps,
        groups=count,
        by_group=[
            GroupLedger(
                group=pairs.groups[group][0],
                size=len(pairs.groups[group][1]),
                ranks=list(pairs.groups[group][1][:MAX_RANKS]),
                imposed_us=float(imposed[group]),
                imposed_exposed_us=float(exposed[group]),
                worst=_worst(pairs, group),
            )
            for group in shown
        ],
        matrix=[
            LedgerRow(group=group, origin=origin, victim=victim, imposed_us=us, imposed_exposed_us=exposed_us, steps=times)
            for group, origin, victim, us, exposed_us, times in zip(*(column[listed].tolist() for column in columns), strict=True)
        ],
        rest=LedgerRest(
            rows=unlisted,
            imposed_us=max(0.0, float(imposed.sum() - pairs.imposed_us[listed].sum())) if unlisted else 0.0,
            imposed_exposed_us=max(0.0, float(exposed.sum() - pairs.exposed_us[listed].sum())) if unlisted else 0.0,
        ),
    )


def _worst(pairs: Pairs, group: int) -> int | None:
    """Return the rank that others waited for most in a group; ``None`` without any."""
    of_group = pairs.group == group
    origins, place = np.unique(pairs.origin[of_group], return_inverse=True)
    charged = (sums(place, us[of_group], len(origins)) for us in (pairs.imposed_us, pairs.exposed_us))
    return int(origins[np.lexsort((-origins, *charged))[-1]]) if len(origins) else None
