"""Score of an answer about a simulated fleet, compared with the truth. Measures nothing by itself; see fleet_truth.py."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from benchmarks.fleets.fleet import ExpectedAnswer, PlantedFleet

from rankscope.analysis.result.analysis import Analysis, Verdict

WAITING: Final = 0.1
"""Share of the time from which on ranks that wait for each other must be reported."""
SOME_WAITING: Final = 0.05
"""Share of the time from which on they may be reported."""


class Score(NamedTuple):
    """Answer about a fleet, compared with the truth."""

    right: bool
    exact: bool
    """True if exactly the ranks at fault are named, and by rankscope also exactly the hosts."""
    false: bool
    """True if a rank or host is named that is not at fault."""
    undecided: bool = False
    """True if the answer is "not enough data"."""


def named_ranks(verdict: Verdict) -> set[int]:
    """Return the ranks that a verdict names as the reason.

    These are not suspects, and not ranks among which a slowness rotates, unless it stays on a host that is named.
    """
    rotates = verdict.pattern == "rotating" and not verdict.hosts
    if rotates or verdict.kind == "insufficient_data":
        return set()
    return {*verdict.ranks, *(() if verdict.rank is None else (verdict.rank,))}


def score_of(analysis: Analysis, fleet: PlantedFleet) -> Score:
    """Return the score of all that an analysis says about a fleet."""
    expected, verdict = fleet.expected, analysis.verdict
    ranks, hosts = named_ranks(verdict), set(verdict.hosts)
    if verdict.kind == "insufficient_data" and expected.answer != "rare":
        return Score(expected.undecided, exact=False, false=False, undecided=True)
    false = not (ranks <= set(expected.ranks) and hosts <= set(expected.hosts))
    exact = ranks == set(expected.ranks) and hosts == set(expected.hosts)
    in_turn = verdict.kind == "straggler" and verdict.pattern == "rotating" and verdict.rank is None and not hosts
    if expected.answer == "names":
        enough = _are_enough(ranks, expected) or (bool(hosts) and hosts == set(expected.hosts))
        right = (verdict.kind == "straggler" and enough) or (expected.or_rotating and in_turn)
    elif expected.answer == "rare":
        right = _is_right_about_rare_steps(analysis, expected)
    else:
        must_wait = expected.answer == "rotating" or fleet.waiting >= WAITING
        right = in_turn and fleet.waiting >= SOME_WAITING
        right = right or not (must_wait or ranks or verdict.kind in ("straggler", "hang"))
        right = right and expected.cause in (None, verdict.cause)
    return Score(right and not false, exact, false, undecided=verdict.kind == "insufficient_data")


def _are_enough(ranks: Collection[int], expected: ExpectedAnswer) -> bool:
    """Return whether at least half of the ranks at fault are named."""
    return bool(ranks) and 2 * len(ranks) >= len(expected.ranks)


def _is_right_about_rare_steps(analysis: Analysis, expected: ExpectedAnswer) -> bool:
    rare = analysis.rare_steps
    return (
        rare is not None
        and rare.rank == next(iter(expected.ranks), None)
        and expected.cause in (None, rare.cause)
        and analysis.verdict.kind not in ("balanced", "hang")
    )


def score_of_ranks(named: Collection[int], expected: ExpectedAnswer) -> Score:
    """Return the score of the ranks alone that some method names. It need not know hosts, causes or rotating slowness."""
    at_fault = set(expected.ranks)
    false = not set(named) <= at_fault
    none_is_right = not at_fault or expected.undecided or expected.or_rotating
    right = _are_enough(named, expected) if named else none_is_right
    return Score(right and not false, set(named) == at_fault, false)


def cost_error(analysis: Analysis, fleet: PlantedFleet) -> float | None:
    """Return the stated saving divided by the true one, minus 1; ``None`` where none is to be stated.

    For rare steps, it is the share of the job's time that they take.
    """
    expected, verdict = fleet.expected, analysis.verdict
    if fleet.rare_share is not None:
        return None if analysis.rare_steps is None else analysis.rare_steps.share / fleet.rare_share - 1
    if expected.answer != "names" or verdict.kind == "insufficient_data" or verdict.pattern == "rotating":
        return None
    return -1.0 if verdict.slowdown is None else (1 - 1 / verdict.slowdown) / fleet.saving - 1


def interval_holds(analysis: Analysis, fleet: PlantedFleet) -> bool | None:
    """Return whether the stated interval of the saving has the true one; ``None`` without an interval or ranks at fault."""
    interval = analysis.verdict.saves
    if interval is None or fleet.expected.answer != "names":
        return None
    return interval[0] <= fleet.saving <= interval[1]
