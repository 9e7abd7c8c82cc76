"""Cost of rare steps: what the few steps cost that take much longer than the typical one, for which rank, and why."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.causes import CAUSES
from rankscope.analysis.evidence.activities import ACTIVITIES
from rankscope.analysis.evidence.typical import TypicalSteps, after_warm_up
from rankscope.analysis.inference.judging.significance import LIMIT
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import RareSteps
from rankscope.analysis.result.cause import Cause
from rankscope.base.text import format_duration

MATTERS: Final = 0.05
"""Share of the run's time from which rare steps are reported."""

_MOST: Final = 0.6
"""Share of the time of rare steps that one rank, or one cause, must have to be named with it."""

_COVERED: Final = 0.95
"""Share of the time of rare steps that those which are counted take."""

_LISTED: Final = 16


@dataclass(frozen=True, slots=True)
class RareTime:
    """Time of rare steps beyond as many typical ones."""

    looked_at: NDArray[np.bool_]
    """Steps among which they were found, [entries of ``TypicalSteps.met``]."""
    typical_us: float
    """Time of the typical step."""
    extra_us: NDArray[np.float64]
    """Time beyond that of all steps of each entry; 0 where it is not rare, [entries]."""
    share: float
    """Share of the time of the steps looked at."""


def rare_time(typical: TypicalSteps) -> RareTime:
    """Return the time of the rare steps of a run beyond as many typical ones."""
    length, rare = typical.length_us, typical.rare
    looked_at = np.isfinite(length) & after_warm_up(len(length))
    if not rare.any():
        return RareTime(looked_at, 0.0, np.zeros(len(length)), 0.0)
    middle = float(np.median(length[looked_at & ~rare]))
    extra = typical.per_entry * np.where(rare, np.nan_to_num(length) - middle, 0.0).clip(min=0.0)
    return RareTime(looked_at, middle, extra, float(extra.sum() / (typical.per_entry * length[looked_at].sum())))


def rare_steps_of(run: RunEvidence) -> RareSteps | None:
    """Return the cost of the rare steps of a run; ``None`` where they do not matter.

    A rank is named if it alone needed most of the time that these steps took beyond the typical one, and was alone in all of
    them or in more than chance explains. The cause is an activity that the records are tagged with, or garbage collection, if it
    takes most of that time.
    """
    table, rare = run.typical.met, run.typical.rare
    time = rare_time(run.typical)
    if time.share < MATTERS:
        return None
    typical, extra, share = time.typical_us, time.extra_us, time.share
    lost = float(extra.sum())
    excess, alone = (run.typical.per_entry * times for times in _excess(run, rare, typical))
    by_rank = np.maximum(alone, 0.0).sum(axis=1)
    row = int(by_rank.argmax()) if len(by_rank) else 0
    rank = run.ranks[row] if len(by_rank) and by_rank[row] >= _MOST * max(lost, float(by_rank.sum())) else None
    steps = np.flatnonzero(rare)
    costly = np.argsort(-extra[steps], kind="stable")
    # The few steps that take nearly all of this time: the others are not worth a word.
    costly = costly[: 1 + int(np.searchsorted(np.cumsum(extra[steps][costly]), _COVERED * lost))]
    # Where no rank worked for as long, all of them waited.
    waited = excess.max(axis=0, initial=0.0).sum() < (1 - _MOST) * lost
    cause: Cause | None = "communication" if waited else None
    if rank is not None:
        cause = _cause(run, steps, np.where(np.arange(len(alone))[:, None] == row, alone, 0.0))
        count = int((alone[row, costly] > 0).sum())
        # A rank that is alone in all of them is named; whether that may be chance, the verdict says.
        if cause not in ACTIVITIES and count < len(costly) and chance_alone(count, len(costly), len(alone)) > LIMIT:
            rank = None
    if rank is None and not waited:
        # Where no rank is alone to blame, what takes the time of all of them may still be known.
        cause = _cause(run, steps, alone if by_rank.sum() >= _MOST * lost else excess)
    host = None if rank is None else run.hosts.get(rank)
    costly = steps[costly]
    moves = rank is None and bool(by_rank.sum() >= _MOST * lost)
    number, every = len(costly), round(run.typical.per_entry * int(time.looked_at.sum()))
    # Of the steps up to a meeting, one is as long as that.
    longest = typical + float(extra.max())
    rare_steps = RareSteps(
        count=number,
        of_steps=every,
        steps=sorted(int(step) for step in table.steps[costly[:_LISTED]]),
        typical_us=typical,
        longest_us=longest if rank is None else max(longest, float(alone[row].max()) + typical),
        share=share,
        lost_us=lost,
        rank=rank,
        moves=moves,
        host=host,
        cause=cause,
        summary="",
    )
    return msgspec.structs.replace(rare_steps, summary=_sentence(rare_steps, int(table.steps[costly[0]])))


def _excess(run: RunEvidence, rare: NDArray[np.bool_], typical_us: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the own time of each rank at the rare steps beyond its usual, and beyond the others' there, [ranks, rare]."""
    table = run.typical.met
    own = table.matrix("own_us") if table.is_known("own_us") else np.full((len(table.ranks), len(table.steps)), np.nan)
    with np.errstate(all="ignore"):
        usual = np.array(
            [np.median(finite_times) if len(finite_times := row[np.isfinite(row)]) else typical_us for row in own[:, ~rare]]
        )
    at = own[:, rare]
    excess = np.nan_to_num(at - usual[:, None]).clip(min=0.0)
    if len(at) < 2:  # no rank is seen to wait for it
        return excess, np.zeros_like(excess)
    # The second longest tells what the others waited for this rank.
    second = np.sort(excess, axis=0)[-2]
    return excess, np.where(excess == excess.max(axis=0), excess - second, 0.0)


def chance_alone(count: int, steps: int, ranks: int) -> float:
    """Return the probability that one of equal ranks is alone slow in ``count`` or more of so many steps."""
    ways = sum(comb(steps, number) * (ranks - 1) ** (steps - number) for number in range(count, steps + 1))
    return float(min(1.0, ways / ranks ** (steps - 1)))


def _cause(run: RunEvidence, steps: NDArray[np.intp], weights: NDArray[np.float64]) -> Cause | None:
    """Return the cause of most of ``weights``, time of ranks at the rare ``steps`` [ranks, rare]; ``None``: not known."""
    table, total_weight = run.typical.met, float(weights.sum())
    if total_weight <= 0:
        return None
    weight_by_cause: dict[Cause, float] = {
        cause: float(weights[table.tagged(tag)[:, steps]].sum()) for cause, tag in ACTIVITIES.items() if tag in table.tags
    }
    row, column = np.nonzero(weights)
    metrics: dict[Cause, str] = {"gc": "gc_us", "input": "own_data_us"}
    for cause, metric in metrics.items():
        if table.is_known(metric):
            values = np.nan_to_num(table.at(metric, row, steps[column]).astype(np.float64))
            weight_by_cause[cause] = float(np.minimum(values, weights[row, column]).sum())
    most = max(weight_by_cause, key=lambda cause: weight_by_cause[cause], default=None)
    return most if most is not None and weight_by_cause[most] >= _MOST * total_weight else None


_NOUNS: Final = {row.cause: row.noun for row in CAUSES if row.noun}


def _sentence(rare: RareSteps, costliest: int) -> str:
    took = format_duration(rare.longest_us)
    steps_text = (
        f"Step {costliest} took {took}" if rare.count == 1 else f"{rare.count:,} of {rare.of_steps:,} steps took up to {took}"
    )
    text = f"{steps_text}, the typical one {format_duration(rare.typical_us)}: {rare.share:.0%} of the run's time"
    if rare.rank is not None:
        text += f", in which the others waited for rank {rare.rank}"
    elif rare.moves and rare.count > 1:
        text += ", in which the others waited for one rank, not always the same"
    return f"{text} ({_NOUNS[rare.cause]})." if rare.cause in _NOUNS else f"{text}."
