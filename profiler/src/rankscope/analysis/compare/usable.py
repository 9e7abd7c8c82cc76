"""Steps of a recording that can be compared, the work in them, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.compare.recording import Recording
from rankscope.analysis.evidence.peers import batch_of
from rankscope.analysis.evidence.steps import METRICS, Matrix, StepTable
from rankscope.analysis.evidence.typical import after_warm_up
from rankscope.analysis.result.analysis import Cost
from rankscope.analysis.trace.possible import MAX_US
from rankscope.runs.records import RankInfo, RunInfo

WorkName = Literal["samples", "tokens", "input_elements"]
WORK_NAMES: Final[tuple[WorkName, ...]] = ("tokens", "samples", "input_elements")
"""Measures of work, best first: the number of samples does not show the length of the sequences."""

Basis = Literal["own", "wall"]

MOSTLY: Final = 0.9
"""Minimum fraction of steps with own times for own times to be compared; the other steps are then left out."""
LONGEST_GAP: Final = 128
"""Or largest number of steps from one with own times to the next: on devices, of short steps, one of each 2 to 64 has them."""
FEWEST: Final = 8
"""Minimum number of steps with own times in that case."""


@dataclass(frozen=True, slots=True)
class Usable:
    """One side: complete steps of the ranks that have records of most steps."""

    label: str
    recording: Recording
    steps: tuple[int, int]
    """First recorded step, and the step after the last recorded one."""
    table: StepTable
    """Compared ranks and steps only: every wall time is known."""
    left_out: dict[str, int]
    has_own: bool
    """True if the own time of every rank is known in all steps of ``table``."""
    work: dict[WorkName, float | None]
    """Work per step of the whole job."""


def _is_enough(own_known: NDArray[np.bool_]) -> bool:
    """Return whether own times of these steps stand for all of them: nearly all have one, or steps all along do."""
    known = np.flatnonzero(own_known)
    if len(known) == 0 or len(known) >= MOSTLY * len(own_known):
        return len(known) > 0
    return len(known) >= FEWEST and int(np.diff(known, prepend=-1, append=len(own_known)).max()) <= LONGEST_GAP


def usable(recording: Recording, label: str, *, first: int = 0, end: int | None = None) -> Usable:
    """Select the comparable steps from ``first`` to ``end`` (exclusive).

    Left out are warm-up steps of the run, steps in which any rank was profiled, and steps that a compared rank lacks. Ranks with
    less than half of the steps of others are not compared.
    """
    table = recording.table
    count = len(table.steps)
    inside = (table.steps >= first) & (True if end is None else table.steps < end)
    warm = inside & ~after_warm_up(count)
    profiled = inside & ~warm & table.profiled.any(axis=0)
    keep = inside & ~warm & ~profiled
    there = _there(table)
    per_rank = (there & keep).sum(axis=1)
    rows = np.flatnonzero((per_rank > 0) & (2 * per_rank >= per_rank.max(initial=0)))
    complete = there[rows].all(axis=0)
    incomplete = keep & ~complete
    kept = table.columns(keep & complete).rows(rows)
    own_known: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(kept.matrix("own_us")), axis=0)
    has_own = _is_enough(own_known)
    if has_own:
        kept = kept.columns(own_known)
    numbers = table.steps[inside]
    left_out = {
        "warm_up": int(warm.sum()),
        "profiled": int(profiled.sum()),
        "incomplete": int(incomplete.sum()),
        "without_own_time": int((~own_known).sum()) if has_own else 0,
    }
    return Usable(
        label=label,
        recording=recording,
        steps=(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (first, first),
        table=kept,
        left_out={name: count for name, count in left_out.items() if count},
        has_own=has_own,
        work={name: work_per_step(kept, name, recording.infos, recording.world_size) for name in WORK_NAMES},
    )


def _there(table: StepTable) -> NDArray[np.bool_]:
    """Return a mask [ranks, steps] of the recorded steps that took time and whose times are all plausible."""
    there: NDArray[np.bool_] = table.matrix("wall_us") > 0
    for name, metric in METRICS.items():
        if metric.unit == "us":
            # A comparison with NaN is False, so an unknown time does not count as damage.
            there &= np.logical_not(np.abs(table.matrix(name)) > MAX_US)
    return there


def mean_over_ranks(values: Matrix) -> NDArray[np.float64] | None:
    """Average [ranks, steps] over the ranks to [steps]; ``None`` if no rank has a value.

    A rank without a value counts as 0, because that time of its step is in another phase.
    """
    known = np.isfinite(values)
    if not known.any():
        return None
    mean: NDArray[np.float64] = np.where(known, values, 0.0).mean(axis=0)
    return mean


def walls(table: StepTable) -> NDArray[np.float64]:
    """Return the wall time of each step of a ``Usable`` table, mean over its ranks; empty if no step is usable."""
    found = mean_over_ranks(table.matrix("wall_us"))
    return np.empty(0) if found is None else found


def work_per_step(table: StepTable, name: WorkName, infos: Mapping[int, RankInfo], world_size: int) -> float | None:
    """Return the mean work of a step of the job over the steps of ``table``; ``None`` if no rank recorded it.

    Ranks that work on the same samples (``batch_of``) count once. Ranks without records are assumed to do as much as the others.
    """
    groups: dict[tuple[object, ...], list[float]] = {}
    values = table.matrix(name)
    for row, rank in enumerate(table.ranks.tolist()):
        known = values[row][np.isfinite(values[row])]
        groups.setdefault(batch_of(rank, infos.get(rank)), []).extend([float(known.mean())] if len(known) else [])
    found = [float(np.mean(group)) for group in groups.values() if group]
    total = float(np.mean(found)) * len(groups) if found else 0.0
    return total * world_size / len(table.ranks) if total > 0 else None


def priced(given: Cost | None, info: RunInfo) -> Cost | None:
    """Return the price of a GPU-hour: the given one, else the one recorded with the run."""
    if given is not None or info.price_per_gpu_hour is None:
        return given
    return Cost(amount=info.price_per_gpu_hour, currency=info.currency or "USD")


def cost_per_million(per_s: float | None, world_size: int, gpu_hour: Cost | None) -> Cost | None:
    """Return the cost of a million samples or tokens, of which the whole job does ``per_s`` per second; ``None`` if unknown."""
    if per_s is None or per_s <= 0 or gpu_hour is None:
        return None
    return Cost(amount=1e6 / per_s / 3600 * world_size * gpu_hour.amount, currency=gpu_hour.currency)
