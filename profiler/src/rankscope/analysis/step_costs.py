"""What the always-on step records tell of where a step's time goes.

At each step the *typical rank* is the one in the middle by own time (the mean of the two in the middle of an even number). What
it was blocked while the last rank still worked is waiting for that rank, the rest of what it was blocked is communication. Its
own time is taken apart by phases, and on CPUs by what the training thread did. In a pipeline, whose stages differ, the typical
rank is the mean over stages, and all that it was blocked is the bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.own_time import MINIMUM_STEPS, WARM_UP, judge
from rankscope.analysis.pipeline_result import PipelineResult
from rankscope.analysis.steps import Matrix, StepTable
from rankscope.analysis.waterfall import Amount, Costs
from rankscope.analysis.waterfall_result import PartName

NO_OWN_TIME: Final = "the step records do not tell own time from waiting"
NO_WINDOW: Final = "compute and host are told apart by profiled windows only"
NO_CPU_TIME: Final = "compute and host are told apart by CPU time only, which is not recorded"
IN_BUBBLE: Final = "not told apart from the pipeline's bubble"


@dataclass(frozen=True, slots=True)
class _Typical:
    """The steps judged, and how much each rank counts as the typical one, [ranks, steps], 1 in every step."""

    table: StepTable
    weights: Matrix
    alone: bool
    """One rank, which waits for nobody."""

    def mean(self, values: Matrix) -> float | None:
        """Mean over the steps of the typical rank's value; ``None`` where nobody has one."""
        known = np.isfinite(values)
        weight = float(self.weights[known].sum())
        return float((self.weights[known] * values[known]).sum()) / weight if weight > 0 else None

    def own(self, name: str) -> Matrix:
        """``own_NAME``, or ``NAME`` of a rank that is alone."""
        return self.table.matrix(name if self.alone else f"own_{name}")


def costs_of_steps(
    table: StepTable, *, world_size: int | None, accelerated: bool, pipeline: PipelineResult | None = None
) -> Costs | None:
    """Costs of the mean step; ``None`` without ``MINIMUM_STEPS`` steps."""
    typical = _typical(table, world_size, pipeline)
    if typical is None:
        return _without_own_time(table)
    plain = typical.table
    ranks = typical.weights.any(axis=1)
    wall = float(np.nanmean(plain.matrix("wall_us")[ranks]))
    known: dict[PartName, Amount] = {}
    notes: dict[PartName, str] = {}

    def told(name: PartName, us: float | None) -> None:
        if us is not None:
            known[name] = Amount(us, "steps")

    if typical.alone:
        told("exposed_communication", 0.0)
        told("straggler_wait", 0.0)
    else:
        own, blocked = plain.matrix("own_us"), plain.matrix("blocked_us")
        if pipeline is not None:
            told("pipeline_bubble", typical.mean(blocked))
            notes |= dict.fromkeys(("exposed_communication", "straggler_wait"), IN_BUBBLE)
        else:
            longest = np.where(np.isfinite(own), own, -np.inf).max(axis=0)
            waiting = np.minimum(np.maximum(longest - own, 0), blocked)
            told("exposed_communication", typical.mean(blocked - waiting))
            told("straggler_wait", typical.mean(waiting))
    told("input", typical.mean(typical.own("data_us")))
    if (copies := typical.mean(typical.own("h2d_us"))) is not None:
        told("copies", copies)
    elif not accelerated:
        told("copies", 0.0)  # there is nowhere to copy to
    if accelerated:
        notes |= dict.fromkeys(("compute", "host"), NO_WINDOW)
        between = typical.mean(typical.own("between_steps_us"))
        return Costs(
            wall, len(plain.steps), known=known, notes=notes, between_steps_us=between, gc_us=typical.mean(plain.matrix("gc_us"))
        )
    if typical.mean(plain.matrix("cpu_us")) is None:
        notes |= dict.fromkeys(("compute", "host"), NO_CPU_TIME)
        return Costs(wall, len(plain.steps), known=known, notes=notes)
    thread = _thread(typical)
    told("compute", typical.mean(thread.compute))
    told("host", typical.mean(thread.host))
    return Costs(
        wall,
        len(plain.steps),
        known=known,
        notes=notes,
        between_steps_us=typical.mean(thread.between_steps),
        stalled_us=typical.mean(thread.stalled),
        run_queue_us=typical.mean(thread.run_queue),
        gc_us=typical.mean(thread.gc),
    )


@dataclass(frozen=True, slots=True)
class _Thread:
    """What a training thread on a CPU did in its own time outside input and copies, [ranks, steps]."""

    compute: Matrix
    between_steps: Matrix
    stalled: Matrix
    run_queue: Matrix
    gc: Matrix

    @property
    def host(self) -> Matrix:
        """All but compute."""
        return self.between_steps + self.stalled + self.run_queue + self.gc


def _thread(typical: _Typical) -> _Thread:
    """Time off the CPU is taken for waiting in the data loader first, then for what goes on between the steps: only what
    neither can explain is a stall inside the model's phases. What is left of these is compute.
    """
    table = typical.table
    own = table.matrix("wall_us") if typical.alone else table.matrix("own_us")
    data, copies, between = (np.nan_to_num(typical.own(name)) for name in ("data_us", "h2d_us", "between_steps_us"))
    queued, collected = (np.nan_to_num(table.matrix(name)) for name in ("run_queue_us", "gc_us"))
    between = np.clip(between, 0, np.maximum(own, 0))
    model = np.maximum(own - data - copies - between, 0)
    off = own - table.matrix("cpu_us") - queued
    stalled = np.clip(off - data - copies - between, 0, model)
    queue = np.clip(queued, 0, model - stalled)
    gc = np.clip(collected, 0, model - stalled - queue)
    return _Thread(compute=model - stalled - queue - gc, between_steps=between, stalled=stalled, run_queue=queue, gc=gc)


def _typical(table: StepTable, world_size: int | None, pipeline: PipelineResult | None) -> _Typical | None:
    judged = judge(table, [int(rank) for rank in table.ranks])
    if judged is not None:
        weights = np.zeros(judged.table.matrix("own_us").shape)
        weights[judged.rows] = (
            _middle(judged.own) if pipeline is None else _per_stage(judged.ranks, pipeline)[:, None] * np.ones(judged.own.shape)
        )
        return _Typical(judged.table, weights, alone=False)
    if (world_size or len(table.ranks)) != 1 or len(table.ranks) != 1:
        return None
    keep = usual_steps(table)
    return _Typical(table.columns(keep), np.ones((1, int(keep.sum()))), alone=True) if keep.sum() >= MINIMUM_STEPS else None


def _middle(own: Matrix) -> Matrix:
    """Weights of the ranks in the middle; ranks of the same own time share, so that their order does not matter."""
    ordered = np.sort(own, axis=0)
    weights = np.zeros(own.shape)
    for place in ((len(own) - 1) // 2, len(own) // 2):
        there = own == ordered[place]
        weights += 0.5 * there / there.sum(axis=0)
    return weights


def _per_stage(ranks: Sequence[int], pipeline: PipelineResult) -> Matrix:
    """Every stage counts the same, and in it every rank."""
    weights: Matrix = np.zeros(len(ranks))
    for stage in pipeline.stages:
        mine = np.isin(ranks, stage.ranks)
        weights[mine] = 1 / max(1, mine.sum())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def usual_steps(table: StepTable) -> NDArray[np.bool_]:
    """[steps]: after warm-up, with a record, not profiled where enough others are there."""
    count = len(table.steps)
    keep = (np.arange(count) >= min(WARM_UP, count // 5)) & table.has_record.any(axis=0)
    plain = keep & ~table.profiled.any(axis=0)
    return plain if plain.sum() >= MINIMUM_STEPS else keep


def _without_own_time(table: StepTable) -> Costs | None:
    """Only the wall time, and of it what the ranks waited for data, which is no time in which they wait for each other."""
    keep = usual_steps(table)
    if keep.sum() < MINIMUM_STEPS:
        return None
    plain = table.columns(keep)
    data = plain.matrix("data_us")
    return Costs(
        step_us=float(np.nanmean(plain.matrix("wall_us"))),
        steps=int(keep.sum()),
        known={"input": Amount(float(np.nanmean(data)), "steps")} if np.isfinite(data).any() else {},
        notes=dict.fromkeys(("exposed_communication", "straggler_wait", "compute", "host"), NO_OWN_TIME),
    )
