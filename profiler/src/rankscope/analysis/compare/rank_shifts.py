"""Ranks that became slower or faster than their peers."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.compare.comparable_steps import ComparableSteps
from rankscope.analysis.compare.compare_result import Outcome, RankShift
from rankscope.analysis.compare.outcomes import as_shift, both_statistics, outcome
from rankscope.analysis.compare.shift import cut
from rankscope.analysis.evidence.compared import StepOwnTimes, imposed_wait
from rankscope.analysis.evidence.peers import peer_groups
from rankscope.analysis.evidence.step_table.steps import Matrix, Stored
from rankscope.analysis.inference.judging.excess import excess
from rankscope.runs.records import PHASES, Phase

_CLEAR: Final = 0.5
"""Minimum share of the change for a phase to be named."""


def comparable_ranks(a: ComparableSteps, b: ComparableSteps) -> list[int]:
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
    a: ComparableSteps, b: ComparableSteps, ranks: list[int], *, work: tuple[float, float], level: float, least_difference: float
) -> list[RankShift]:
    """Return one row per rank, with times divided by the ``work`` of a step of either side.

    ``least_difference``: the smallest change that matters. A rank is slower if its own time became longer, both in itself and
    against the median of its peers. The first alone also happens if all ranks became slower, the second alone if the peers
    became faster.
    """
    if not ranks:
        return []
    own_a, own_b = (side.table.some("own_us", slice(None), np.searchsorted(side.table.ranks, ranks)) for side in (a, b))
    excess_a, excess_b = (
        _excess(side, ranks, own) / of_step for side, own, of_step in zip((a, b), (own_a, own_b), work, strict=True)
    )
    against = [both_statistics(*cut(*pair), level) for pair in zip(excess_a, excess_b, strict=True)]
    own_means = [
        [float((times.astype(np.float64) / of_step).mean()) for times in own]
        for own, of_step in zip((own_a, own_b), work, strict=True)
    ]
    outcomes = [
        _agreed(outcome(tested.all, least_difference, "lower"), own, work, level, least_difference)
        for tested, *own in zip(against, own_a, own_b, strict=True)
    ]
    excess_means = [excess.mean(axis=1).tolist() for excess in (excess_a, excess_b)]
    del own_a, own_b, excess_a, excess_b  # each as large as a table
    imposed_a, imposed_b = (_imposed(side, ranks, of_step) for side, of_step in zip((a, b), work, strict=True))
    phases: dict[Phase, NDArray[np.float64]] = {}
    if {"worse", "better"} & set(outcomes):
        before, after = (_phase_excess(side, ranks, of_step) for side, of_step in zip((a, b), work, strict=True))
        phases = {phase: after[phase] - before[phase] for phase in PHASES}
    return [
        RankShift(
            rank=rank,
            host_a=_host(a, rank),
            host_b=_host(b, rank),
            own_a_us=own_means[0][row],
            own_b_us=own_means[1][row],
            excess_a_us=excess_means[0][row],
            excess_b_us=excess_means[1][row],
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


def _agreed(
    outcome_of_steps: Outcome, own: list[Stored], work: tuple[float, float], level: float, least_difference: float
) -> Outcome:
    """Return the outcome against the peers; a change is undecided unless the rank's own time has the same outcome."""
    if outcome_of_steps not in ("worse", "better", "mixed"):
        return outcome_of_steps
    a, b = (times.astype(np.float64) / of_step for times, of_step in zip(own, work, strict=True))
    itself = outcome(both_statistics(*cut(a, b), level).all, least_difference, "lower")
    return outcome_of_steps if itself == outcome_of_steps else "undecided"


def _phase_excess(side: ComparableSteps, ranks: list[int], work: float) -> dict[Phase, NDArray[np.float64]]:
    """Return the mean excess of each rank in each phase, [ranks], per unit of work."""
    names = [f"own_{phase}_us" for phase in PHASES]
    # A table of its own, so that the phases of this side are dropped before those of the other are read.
    table = side.table.rows(np.searchsorted(side.table.ranks, ranks), names)
    return {
        phase: _excess(side, ranks, np.nan_to_num(table.stored(name))).mean(axis=1) / work
        for phase, name in zip(PHASES, names, strict=True)
    }


def _phase(changes: dict[Phase, float]) -> Phase | None:
    """Return the phase with the largest part of the change; ``None`` if that is less than ``_CLEAR`` of it."""
    total_change = sum(changes.values())
    phase = max(changes, key=lambda name: changes[name] * total_change)
    return phase if changes[phase] * total_change >= _CLEAR * total_change**2 > 0 else None


def _excess(side: ComparableSteps, ranks: list[int], values: Stored) -> Matrix:
    """Return ``values`` above the median of the other ranks that do the same work, [ranks, steps] in the order of ``ranks``."""
    place = {rank: number for number, rank in enumerate(ranks)}
    groups = [[place[rank] for rank in group] for group in peer_groups(ranks, side.recording.infos)]
    if len(groups) == 1:
        return excess(values)
    excesses = np.zeros(values.shape)
    for at in groups:
        excesses[at] = excess(values[at])
    return excesses


def _imposed(side: ComparableSteps, ranks: list[int], work: float) -> dict[int, float]:
    """Return the imposed wait of each rank per unit of work and waiting rank, as in a verdict on that rank alone."""
    imposed: dict[int, float] = {}
    for group in peer_groups(ranks, side.recording.infos):
        rows = np.searchsorted(side.table.ranks, group)
        judged = StepOwnTimes(side.table, rows, side.table.stored("own_us")[rows], wall_us=0.0)
        victims, steps = len(group) - 1, len(side.table.steps)
        imposed |= {rank: total / steps / victims / work for rank, total in imposed_wait(judged).items()}
    return imposed


def _host(side: ComparableSteps, rank: int) -> str | None:
    info = side.recording.infos.get(rank)
    return None if info is None else info.host
