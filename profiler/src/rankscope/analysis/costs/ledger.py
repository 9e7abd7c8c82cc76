"""Wait attribution: imposed wait by process group, origin and victim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rankscope.analysis.collectives.blame import Blame, Group, Row
from rankscope.analysis.evidence.compared import Judged, waits
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
    return _ledger(blame.rows, source, len(blame.steps)) if blame.steps else None


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
    return _ledger(groups, "steps", max(judged.own.shape[1] for judged in compared))


def _ledger(groups: Mapping[Group, dict[tuple[int, int], Row]], source: LedgerSource, steps: int) -> Ledger:
    """Return the wait attribution from the rows of all process groups over ``steps`` steps.

    The largest rows are listed one by one, the rest is summed up.
    """
    sums = {key: _sum(rows.values()) for key, rows in groups.items()}
    shown = sorted(groups, key=lambda key: (-sums[key][1], -sums[key][0], key[0] or "", key[1]))[:MAX_GROUPS]
    everything = [
        LedgerRow(group=at, origin=origin, victim=victim, imposed_us=imposed, imposed_exposed_us=exposed, steps=count)
        for at, key in enumerate(shown)
        for (origin, victim), (imposed, exposed, count) in groups[key].items()
    ]
    everything.sort(key=lambda row: (-row.imposed_exposed_us, -row.imposed_us, row.group, row.origin, row.victim))
    matrix = everything[:MAX_LEDGER_ROWS]
    whole = _sum((sums[key][0], sums[key][1], len(rows)) for key, rows in groups.items())
    told = _sum((row.imposed_us, row.imposed_exposed_us, 1) for row in matrix)
    left = whole[2] - told[2]
    return Ledger(
        source=source,
        steps=steps,
        groups=len(groups),
        by_group=[_group(key, groups[key], sums[key]) for key in shown],
        matrix=matrix,
        rest=LedgerRest(
            rows=left,
            imposed_us=max(0.0, whole[0] - told[0]) if left else 0.0,
            imposed_exposed_us=max(0.0, whole[1] - told[1]) if left else 0.0,
        ),
    )


def _group(key: Group, rows: dict[tuple[int, int], Row], total: Row) -> GroupLedger:
    name, members = key
    charged: dict[int, tuple[float, float]] = {}
    for (origin, _), (imposed, exposed, _) in rows.items():
        before = charged.get(origin, (0.0, 0.0))
        charged[origin] = (before[0] + exposed, before[1] + imposed)
    return GroupLedger(
        group=name,
        size=len(members),
        ranks=list(members[:MAX_RANKS]),
        imposed_us=total[0],
        imposed_exposed_us=total[1],
        worst=max(charged, key=lambda rank: (charged[rank], -rank), default=None),
    )


def _sum(rows: Iterable[Row]) -> Row:
    imposed, exposed, count = 0.0, 0.0, 0
    for row in rows:
        imposed, exposed, count = imposed + row[0], exposed + row[1], count + row[2]
    return imposed, exposed, count
