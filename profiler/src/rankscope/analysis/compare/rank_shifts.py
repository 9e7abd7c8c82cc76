"""Ranks that became slower or faster than their peers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.compare.judging import as_shift, both_statistics, outcome
from rankscope.analysis.compare.result import Outcome, RankShift
from rankscope.analysis.compare.shift import Series, cut
from rankscope.analysis.compare.usable import Usable
from rankscope.analysis.evidence.compared import Judged, imposed_wait
from rankscope.analysis.evidence.peers import peer_groups
from rankscope.analysis.evidence.steps import Matrix
from rankscope.analysis.inference.excess import excess
from rankscope.runs.records import PHASES, Phase

_CLEAR: Final = 0.5
"""Minimum share of the change for a phase to be named."""


def comparable_ranks(a: Usable, b: Usable) -> list[int]:
    """Return the ranks of both sides; none if a rank has no peer or own times are unknown.

    Also none if the world sizes differ: the same rank then has another place in the job.
    """
    if a.recording.world_size != b.recording.world_size or not (a.has_own and b.has_own):
        return []
    both = sorted(set(a.table.ranks.tolist()) & set(b.table.ranks.tolist()))
    if any(len(group) < 2 for side in (a, b) for group in peer_groups(both, side.recording.infos)):
        return []
    return both


def rank_shifts(
    a: Usable, b: Usable, ranks: list[int], *, work: tuple[float, float], level: float, matters: float
) -> list[RankShift]:
    """Return one row per rank, with times divided by the ``work`` of a step of either side.

    ``matters``: the smallest change that matters. A rank is slower if its own time became longer, both in itself and against the
    median of its peers. The first alone also happens if all ranks became slower, the second alone if the peers became faster.
    """
    if not ranks:
        return []
    own_a, own_b = (_compared(side, ranks, "own_us") / of_step for side, of_step in zip((a, b), work, strict=True))
    excess_a, excess_b = (_excess(side, ranks, "own_us") / of_step for side, of_step in zip((a, b), work, strict=True))
    imposed_a, imposed_b = (_imposed(side, ranks, of_step) for side, of_step in zip((a, b), work, strict=True))
    against = [both_statistics(*cut(*pair), level) for pair in zip(excess_a, excess_b, strict=True)]
    outcomes = [
        _agreed(outcome(tested.all, matters, "lower"), own, level, matters)
        for tested, *own in zip(against, own_a, own_b, strict=True)
    ]
    changed = bool({"worse", "better"} & set(outcomes))
    phases = {phase: _phase_change(a, b, ranks, phase, work) for phase in PHASES} if changed else {}
    return [
        RankShift(
            rank=rank,
            host_a=_host(a, rank),
            host_b=_host(b, rank),
            own_a_us=float(own_a[row].mean()),
            own_b_us=float(own_b[row].mean()),
            excess_a_us=float(excess_a[row].mean()),
            excess_b_us=float(excess_b[row].mean()),
            imposed_a_us=imposed_a[rank],
            imposed_b_us=imposed_b[rank],
            typical=as_shift(against[row].typical, level),
            average=as_shift(against[row].average, level),
            phase=_phase({phase: float(change[row]) for phase, change in phases.items()})
            if outcomes[row] in ("worse", "better")
            else None,
            outcome=outcomes[row],
        )
        for row, rank in enumerate(ranks)
    ]


def slower_hosts(rows: list[RankShift]) -> list[str]:
    """Return the hosts of which every compared rank became slower; a host counts if it has several ranks, but not all."""
    of_host: dict[str, list[RankShift]] = {}
    for row in rows:
        if row.host_b is not None:
            of_host.setdefault(row.host_b, []).append(row)
    return sorted(host for host, on in of_host.items() if 1 < len(on) < len(rows) and all(row.outcome == "worse" for row in on))


def _agreed(found: Outcome, own: list[Series], level: float, matters: float) -> Outcome:
    """Return the outcome against the peers; a change is undecided unless the rank's own time has the same outcome."""
    if found not in ("worse", "better", "mixed"):
        return found
    itself = outcome(both_statistics(*cut(*own), level).all, matters, "lower")
    return found if itself == found else "undecided"


def _phase_change(a: Usable, b: Usable, ranks: list[int], phase: Phase, work: tuple[float, float]) -> NDArray[np.float64]:
    """Return the change of each rank's mean excess in the phase."""
    of_a, of_b = (
        _excess(side, ranks, f"own_{phase}_us").mean(axis=1) / of_step for side, of_step in zip((a, b), work, strict=True)
    )
    change: NDArray[np.float64] = of_b - of_a
    return change


def _phase(changes: dict[Phase, float]) -> Phase | None:
    """Return the phase with the largest part of the change; ``None`` if that is less than ``_CLEAR`` of it."""
    whole = sum(changes.values())
    phase = max(changes, key=lambda one: changes[one] * whole)
    return phase if changes[phase] * whole >= _CLEAR * whole**2 > 0 else None


def _excess(side: Usable, ranks: list[int], metric: str) -> Matrix:
    """Return the metric above the median of the other ranks that do the same work, [ranks, steps] in the order of ``ranks``."""
    values = _compared(side, ranks, metric)
    found = np.zeros_like(values)
    place = {rank: number for number, rank in enumerate(ranks)}
    for group in peer_groups(ranks, side.recording.infos):
        at = [place[rank] for rank in group]
        found[at] = excess(values[at])
    return found


def _imposed(side: Usable, ranks: list[int], work: float) -> dict[int, float]:
    """Return the imposed wait of each rank per unit of work and waiting rank, as in a verdict on that rank alone."""
    found: dict[int, float] = {}
    for group in peer_groups(ranks, side.recording.infos):
        rows = np.searchsorted(side.table.ranks, group)
        judged = Judged(side.table, rows, side.table.stored("own_us")[rows], wall_us=0.0)
        victims, steps = len(group) - 1, len(side.table.steps)
        found |= {rank: total / steps / victims / work for rank, total in imposed_wait(judged).items()}
    return found


def _compared(side: Usable, ranks: list[int], metric: str) -> Matrix:
    values: Matrix = np.nan_to_num(side.table.matrix(metric)[np.searchsorted(side.table.ranks, ranks)])
    return values


def _host(side: Usable, rank: int) -> str | None:
    info = side.recording.infos.get(rank)
    return None if info is None else info.host
