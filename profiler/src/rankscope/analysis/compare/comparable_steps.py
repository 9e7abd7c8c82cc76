"""Steps of a recording that can be compared, the work in them, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.compare.recording import Recording
from rankscope.analysis.costs.recorder_cost import recorder_share
from rankscope.analysis.evidence.peers import batch_of
from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.evidence.step_table.steps import METRICS, StepTable
from rankscope.analysis.evidence.typical import after_warm_up
from rankscope.analysis.result.analysis import Cost
from rankscope.runs.records import RankInfo, RunInfo

WorkName = Literal["samples", "tokens", "input_elements"]
WORK_NAMES: Final[tuple[WorkName, ...]] = ("tokens", "samples", "input_elements")
"""Measures of work, best first: the number of samples does not show the length of the sequences."""

Basis = Literal["own", "wall"]

MOSTLY: Final = 0.9
"""Minimum fraction of steps with own times for own times to be compared; the other steps are then left out."""
LONGEST_GAP: Final = 128
"""Or largest number of steps from one with own times to the next: on devices, of short steps, one of each 2 to 64 has them."""
_RANKS: Final = 64
"""Number of ranks whose metrics are read at a time."""
FEWEST: Final = 8
"""Minimum number of steps with own times in that case."""


@dataclass(frozen=True, slots=True)
class ComparableSteps:
    """One side: complete steps of the ranks that have records of most steps."""

    label: str
    recording: Recording
    """Without the matrices of its table."""
    steps: tuple[int, int]
    """First recorded step, and the step after the last recorded one."""
    table: StepTable
    """Compared ranks and steps only, with own and blocked times; other metrics are read on request."""
    left_out: dict[str, int]
    has_own: bool
    """True if the own time of every rank is known in all steps of ``table``."""
    recorder_share: float | None
    """Cost of the recorder as a share of all steps of the recording."""
    means: dict[str, NDArray[np.float64]]
    """Mean over the ranks, [steps], of each metric that any of them has. A rank without a value counts as 0, because that time of
    its step is in another phase."""
    partial: frozenset[str]
    """Metrics that some rank lacks in some step."""
    work: dict[WorkName, float | None]
    """Work per step of the whole job."""

    @property
    def walls(self) -> NDArray[np.float64]:
        """Wall time of each step, mean over the ranks; empty if no step is usable."""
        return self.means.get("wall_us", np.empty(0))


def _is_enough(own_known: NDArray[np.bool_]) -> bool:
    """Return whether own times of these steps stand for all of them: nearly all have one, or steps all along do."""
    own_columns = np.flatnonzero(own_known)
    if len(own_columns) == 0 or len(own_columns) >= MOSTLY * len(own_known):
        return len(own_columns) > 0
    return len(own_columns) >= FEWEST and int(np.diff(own_columns, prepend=-1, append=len(own_known)).max()) <= LONGEST_GAP


def comparable_steps(recording: Recording, label: str, *, first: int = 0, end: int | None = None) -> ComparableSteps:
    """Select the comparable steps from ``first`` to ``end`` (exclusive).

    Left out are warm-up steps of the run, steps in which any rank was profiled, and steps that a compared rank lacks. Ranks with
    less than half of the steps of others are not compared.
    """
    table = recording.table
    count = len(table.steps)
    inside = StepRange(first, end).among(table.steps)
    warm = inside & ~after_warm_up(count)
    profiled = inside & ~warm & table.profiled.any(axis=0)
    keep = inside & ~warm & ~profiled
    has_record = table.stored("wall_us") > 0
    per_rank = (has_record & keep).sum(axis=1)
    rows = np.flatnonzero((per_rank > 0) & (2 * per_rank >= per_rank.max(initial=0)))
    complete = has_record[rows].all(axis=0)
    incomplete = keep & ~complete
    usable_table = table.columns(keep & complete).rows(rows)
    own_known: NDArray[np.bool_] = np.logical_and.reduce(usable_table.known_mask("own_us"), axis=0)
    has_own = _is_enough(own_known)
    if has_own:
        usable_table = usable_table.columns(own_known)
    means, partial, amounts = _reduced(usable_table)
    numbers = table.steps[inside]
    left_out = {
        "warm_up": int(warm.sum()),
        "profiled": int(profiled.sum()),
        "incomplete": int(incomplete.sum()),
        "without_own_time": int((~own_known).sum()) if has_own else 0,
    }
    return ComparableSteps(
        label=label,
        recording=replace(recording, table=table.without(METRICS)),
        steps=(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (first, first),
        table=usable_table.without(METRICS.keys() - {"own_us", "blocked_us"}),
        left_out={name: count for name, count in left_out.items() if count},
        has_own=has_own,
        recorder_share=recorder_share(table, recording.infos),
        means=means,
        partial=frozenset(partial),
        work={name: work_per_step(amounts[name], recording.infos, recording.world_size) for name in WORK_NAMES},
    )


def _reduced(
    table: StepTable,
) -> tuple[dict[str, NDArray[np.float64]], set[str], dict[WorkName, dict[int, float | None]]]:
    """Return ``means`` and ``partial`` of a side, and the mean work of each rank per step, ``None`` where it is unknown.

    Ranks are read in parts, because all metrics of a large run would not fit into memory.
    """
    sums: dict[str, NDArray[np.float64]] = {}
    partial: set[str] = set()
    amounts: dict[WorkName, dict[int, float | None]] = {name: {} for name in WORK_NAMES}
    for part in table.parts(_RANKS):
        for name in METRICS:
            values = part.matrix(name)
            finite = np.isfinite(values)
            if not finite.all():
                partial.add(name)
            if finite.any():
                sums[name] = sums.get(name, 0.0) + np.where(finite, values, 0.0).sum(axis=0)
            if name in WORK_NAMES:
                rows = zip(part.ranks.tolist(), values, finite, strict=True)
                amounts[name] |= {rank: float(row[has].mean()) if has.any() else None for rank, row, has in rows}
    return {name: total / len(table.ranks) for name, total in sums.items()}, partial, amounts


def work_per_step(amounts: Mapping[int, float | None], infos: Mapping[int, RankInfo], world_size: int) -> float | None:
    """Return the mean work of a step of the job from that of each rank; ``None`` if no rank recorded it.

    Ranks that work on the same samples (``batch_of``) count once. Ranks without records are assumed to do as much as the others.
    """
    groups: dict[tuple[object, ...], list[float]] = {}
    for rank, amount in amounts.items():
        groups.setdefault(batch_of(rank, infos.get(rank)), []).extend([] if amount is None else [amount])
    means = [float(np.mean(group)) for group in groups.values() if group]
    total = float(np.mean(means)) * len(groups) if means else 0.0
    return total * world_size / len(amounts) if total > 0 else None


def priced(stated_cost: Cost | None, info: RunInfo) -> Cost | None:
    """Return the price of a GPU-hour: the given one, else the one recorded with the run."""
    if stated_cost is not None or info.price_per_gpu_hour is None:
        return stated_cost
    return Cost(amount=info.price_per_gpu_hour, currency=info.currency or "USD")


def cost_per_million(per_s: float | None, world_size: int, gpu_hour: Cost | None) -> Cost | None:
    """Return the cost of a million samples or tokens, of which the whole job does ``per_s`` per second; ``None`` if unknown."""
    if per_s is None or per_s <= 0 or gpu_hour is None:
        return None
    return Cost(amount=1e6 / per_s / 3600 * world_size * gpu_hour.amount, currency=gpu_hour.currency)
