"""Costs of a step from the always-on step records.

At each step the *typical rank* is the one in the middle by own time. Of an even number of ranks it is the faster of the two in
the middle, because the extra time of one of two ranks does not describe both. Its blocked time while the last rank still worked
is waiting for that rank; the rest of its blocked time is communication. Its own time is divided by phases, and on CPUs by the
activity of the training thread. A pipeline's stages differ, so it is described by the mean over the stages instead, and all
blocked time is the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.costs.waterfall import Amount, Costs, InnerName
from rankscope.analysis.evidence.activities import ACTIVITIES, activity_times
from rankscope.analysis.evidence.compared import MINIMUM_STEPS, comparable, fill_missing, mean_wall_us, unprofiled
from rankscope.analysis.evidence.order import by_step, leaders, of_blocks
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable
from rankscope.analysis.evidence.typical import after_warm_up
from rankscope.analysis.result.costs import PartName, PipelineResult
from rankscope.analysis.statistics import lower_medians
from rankscope.runs.records import Phase

Vector = NDArray[np.float64]
_Name = TypeVar("_Name")

NO_OWN_TIME: Final = "the step records do not separate own time from waiting"
NO_WINDOW: Final = "only profiled windows separate compute from host"
NO_CPU_TIME: Final = "only CPU time separates compute from host, and it is not recorded"
IN_BUBBLE: Final = "not separated from the pipeline's bubble"


@dataclass(frozen=True, slots=True)
class _TypicalRank:
    """Places (a rank and a step each) of the typical rank in a table, [places], with weights that sum to 1 in every step."""

    table: StepTable
    ranks: NDArray[np.intp]
    """Rows of the table that are compared."""
    steps: NDArray[np.intp]
    """Columns of the table that are judged."""
    row: NDArray[np.intp]
    step: NDArray[np.intp]
    weight: Vector
    alone: bool
    """True for a job of one rank, which waits for no other."""

    @property
    def judged(self) -> StepTable:
        """Table of the judged steps."""
        keep = np.zeros(len(self.table.steps), dtype=bool)
        keep[self.steps] = True
        return replace(self.table, start_unix_ns=None, tags={}).columns(keep)  # no copy of starts and tags

    def at(self, name: str) -> Vector:
        """Return one metric of the table, [places]."""
        return self.table.at(name, self.row, self.step).astype(np.float64)

    def own(self, name: str) -> Vector:
        """Return ``own_NAME``, or ``NAME`` for a job of one rank, [places]."""
        return self.at(name if self.alone else f"own_{name}")

    def mean(self, values: Vector) -> float | None:
        """Return the weighted mean over the steps of ``values`` [places]; ``None`` if none is known."""
        finite = np.isfinite(values)
        weight = float(self.weight[finite].sum())
        return float((self.weight[finite] * values[finite]).sum()) / weight if weight > 0 else None


def costs_of_steps(
    table: StepTable, *, world_size: int | None, accelerated: bool, pipeline: PipelineResult | None = None
) -> Costs | None:
    """Return the costs of the mean step; ``None`` with fewer than ``MINIMUM_STEPS`` steps."""
    typical = _typical(table, world_size, pipeline)
    if typical is None:
        return _without_own_time(table, accelerated=accelerated)
    amounts = _waiting(typical, in_bubble=pipeline is not None)
    notes: dict[PartName, str] = {}
    if "pipeline_bubble" in amounts:
        notes |= dict.fromkeys(("exposed_communication", "straggler_wait"), IN_BUBBLE)
    own_amounts, inner = _own(typical, accelerated=accelerated)
    amounts |= own_amounts
    if "compute" not in amounts:
        notes |= dict.fromkeys(("compute", "host"), NO_WINDOW if accelerated else NO_CPU_TIME)
    return Costs(
        step_us=mean_wall_us(typical.judged, typical.ranks),
        steps=len(typical.steps),
        amounts=_known_amounts(amounts),
        notes=notes,
        inner=_known_amounts(inner),
        largest={} if pipeline is None else _largest(typical, pipeline, accelerated=accelerated),
    )


def _own(typical: _TypicalRank, *, accelerated: bool) -> tuple[dict[PartName, float | None], dict[InnerName, float | None]]:
    """Return the parts of the typical rank's own time, and the inner parts of these.

    If any step has a data phase, steps and stages without one count as waiting 0 for data; their time is in other parts.
    """
    data = typical.own("data_us")
    amounts: dict[PartName, float | None] = {
        "input": typical.mean(np.nan_to_num(data)) if typical.table.is_known("data_us") else None,
        # Without a device there are no copies.
        "copies": typical.mean(typical.own("h2d_us")) if accelerated else 0.0,
    }
    inner: dict[InnerName, float | None] = {"gc": typical.mean(typical.at("gc_us"))}
    activities = _activities(typical)
    if accelerated:
        inner["between_steps"] = typical.mean(typical.own("between_steps_us") - _sum(activities, "between_steps", len(data)))
    elif np.isfinite(typical.at("cpu_us")).any():
        thread = _thread(typical, activities)
        amounts |= {"compute": typical.mean(thread.compute), "host": typical.mean(thread.host)}
        inner = {
            "between_steps": typical.mean(thread.between_steps),
            "stalled": typical.mean(thread.stalled),
            "run_queue": typical.mean(thread.run_queue),
            "gc": typical.mean(thread.gc),
        }
    inner |= {name: typical.mean(sum(times.values(), np.zeros(len(data)))) for name, times in activities.items()}
    return amounts, inner


_Activities = dict[Literal["evaluation", "checkpoint"], dict[Phase, Vector]]
"""Time of each activity that any step has, by the phase that it lies in, [places]."""


def _activities(typical: _TypicalRank) -> _Activities:
    """Return the times of evaluations and checkpoints of the typical rank, together at most the time of the phase.

    Where a step has both and they were not measured, the evaluation counts.
    """
    rows = np.unique(typical.row)
    remaining: dict[Phase, Vector] = {}
    activities: _Activities = {}
    names: tuple[Literal["evaluation", "checkpoint"], ...] = ("evaluation", "checkpoint")
    for name in names:
        tagged = typical.table.tagged(ACTIVITIES[name])[typical.row, typical.step]
        needed = np.isin(rows, typical.row[tagged])
        times = activity_times(typical.table, ACTIVITIES[name], rows, own=not typical.alone, needed=needed)
        for phase, values in times.at(typical.row, typical.step).items():
            if phase not in remaining:
                remaining[phase] = np.nan_to_num(typical.own(f"{phase}_us")).clip(min=0.0)
            allotted = np.minimum(values, remaining[phase])
            remaining[phase] = remaining[phase] - allotted
            activities.setdefault(name, {})[phase] = allotted
    return activities


def _sum(activities: _Activities, phase: Phase, places: int) -> Vector:
    """Return the time of all activities in a phase, [places]."""
    return sum((times[phase] for times in activities.values() if phase in times), np.zeros(places))


def _largest(
    typical: _TypicalRank, pipeline: PipelineResult, *, accelerated: bool
) -> dict[PartName | InnerName, tuple[int, Amount]]:
    """Return, per part of own time, the stage whose ranks have most of it on average, and the amount."""
    largest: dict[PartName | InnerName, tuple[int, Amount]] = {}
    for stage in pipeline.stages:
        of_stage_rows = np.isin(typical.table.ranks[typical.row], stage.ranks)
        of_stage = replace(
            typical, row=typical.row[of_stage_rows], step=typical.step[of_stage_rows], weight=typical.weight[of_stage_rows]
        )
        amounts, inner = _own(of_stage, accelerated=accelerated)
        for name, amount in (*_known_amounts(amounts).items(), *_known_amounts(inner).items()):
            if name not in largest or amount.us > largest[name][1].us:
                largest[name] = (stage.stage, amount)
    return largest


def _known_amounts(times: Mapping[_Name, float | None]) -> dict[_Name, Amount]:
    return {name: Amount(us, "steps") for name, us in times.items() if us is not None and np.isfinite(us)}


def _waiting(typical: _TypicalRank, *, in_bubble: bool) -> dict[PartName, float | None]:
    """Return the parts of the typical rank's blocked time, as far as they can be separated."""
    if typical.alone:
        return {"exposed_communication": 0.0, "straggler_wait": 0.0}
    blocked = typical.at("blocked_us")
    if in_bubble:
        return {"pipeline_bubble": typical.mean(blocked)}
    own = typical.judged.stored("own_us")
    if len(typical.ranks) < len(own):
        own = own[typical.ranks]
    # Where a rank lacks a record, the others may have waited for it: its time is estimated, as for the verdict.
    longest = leaders(fill_missing(own)).largest
    waiting = np.minimum(np.maximum(longest[np.searchsorted(typical.steps, typical.step)] - typical.at("own_us"), 0), blocked)
    return {"exposed_communication": typical.mean(blocked - waiting), "straggler_wait": typical.mean(waiting)}


@dataclass(frozen=True, slots=True)
class _ThreadTimes:
    """Parts of a CPU training thread's own time outside input, [places]."""

    compute: Vector
    between_steps: Vector
    activities: Vector
    """Evaluations and checkpoints."""
    stalled: Vector
    run_queue: Vector
    gc: Vector

    @property
    def host(self) -> Vector:
        """Time of all parts except compute."""
        return self.between_steps + self.activities + self.stalled + self.run_queue + self.gc


def _thread(typical: _TypicalRank, activities: _Activities) -> _ThreadTimes:
    """Return the parts of the training thread's own time.

    Time off the CPU is attributed to the data loader first, then to the time between steps. Only the remainder is a stall inside
    the model's phases. The rest of these phases, without evaluations, run queue and garbage collection, is compute.
    """
    own = typical.at("wall_us" if typical.alone else "own_us")
    data, between, queued, collected = (
        np.nan_to_num(values)
        for values in (typical.own("data_us"), typical.own("between_steps_us"), typical.at("run_queue_us"), typical.at("gc_us"))
    )
    between = np.clip(between, 0, np.maximum(own - data, 0))
    inside = np.minimum(_sum(activities, "forward", len(own)), np.maximum(own - data - between, 0))
    model = np.maximum(own - data - between - inside, 0)
    stalled = np.clip(own - typical.at("cpu_us") - queued - data - between - inside, 0, model)
    queue = np.clip(queued, 0, model - stalled)
    gc = np.clip(collected, 0, model - stalled - queue)
    outside = np.minimum(_sum(activities, "between_steps", len(own)), between)
    return _ThreadTimes(
        compute=model - stalled - queue - gc,
        between_steps=between - outside,
        activities=outside + inside,
        stalled=stalled,
        run_queue=queue,
        gc=gc,
    )


def _typical(table: StepTable, world_size: int | None, pipeline: PipelineResult | None) -> _TypicalRank | None:
    compared = comparable(table, [int(rank) for rank in table.ranks])
    if compared is not None:
        rows, steps = compared[0], np.flatnonzero(compared[1])
        if pipeline is None:
            row, step = _middle(table, rows, compared[1])
            sharing = np.bincount(step, minlength=len(table.steps))
            return _TypicalRank(table, rows, steps, row, step, 1 / sharing[step], alone=False)
        weights = _per_stage(table.ranks[rows], (len(rows), len(steps)), pipeline)
        row, step = np.nonzero(weights)
        return _TypicalRank(
            table, rows, steps, rows[row], steps[step], weights[row, step] / weights.sum(axis=0)[step], alone=False
        )
    steps = np.flatnonzero(usual_steps(table))
    if (world_size or len(table.ranks)) != 1 or len(table.ranks) != 1 or len(steps) < MINIMUM_STEPS:
        return None
    row = np.zeros(1, dtype=np.intp)
    return _TypicalRank(table, row, steps, np.zeros_like(steps), steps, np.ones(len(steps)), alone=True)


def _middle(table: StepTable, rows: NDArray[np.intp], judged: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return row and column of the middle rank at each ``judged`` step [steps], among the ranks in ``rows``.

    All ranks that tie for the middle own time are returned, so the order of ranks does not matter.
    """

    def of(steps: slice) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        columns = np.flatnonzero(judged[steps])
        own = by_step(table.some("own_us", steps, rows)[:, columns])
        column, row = np.nonzero(own == lower_medians(own.copy())[:, None])
        return rows[row], steps.start + columns[column]

    blocks = of_blocks(table.profiled.shape, of)
    return np.concatenate([row for row, _ in blocks]), np.concatenate([column for _, column in blocks])


def _per_stage(ranks: NDArray[np.int64], shape: tuple[int, ...], pipeline: PipelineResult) -> Matrix:
    """Return weights that are equal for every stage, and within a stage for every rank."""
    weights: Matrix = np.zeros(shape)
    for stage in pipeline.stages:
        in_stage = np.isin(ranks, stage.ranks)
        weights[in_stage] = 1 / max(1, in_stage.sum())
    return weights


def usual_steps(table: StepTable) -> NDArray[np.bool_]:
    """Return the mask [steps] of steps after warm-up with a record, without profiled steps if enough others remain."""
    return unprofiled(table, after_warm_up(len(table.steps)) & table.has_record.any(axis=0))


def _without_own_time(table: StepTable, *, accelerated: bool) -> Costs | None:
    """Return costs with the wall time only, and on CPUs also the time spent waiting for data.

    On CPUs, waiting for data does not overlap with waiting for other ranks. With a device it is left out: the device may have
    work while its host waits for data.
    """
    keep = usual_steps(table)
    if keep.sum() < MINIMUM_STEPS:
        return None
    data = table.stored("data_us")[:, keep]
    # A rank whose records have other phases only loads no data.
    has_times = np.isfinite(data).any(axis=0)
    data = np.where(np.isnan(data) & table.has_record[:, keep] & has_times, 0.0, data)
    is_recorded = not accelerated and np.isfinite(data).any()
    unknown: tuple[PartName, ...] = ("exposed_communication", "straggler_wait", "compute", "host")
    return Costs(
        step_us=float(np.nanmean(table.stored("wall_us")[:, keep], dtype=np.float64)),
        steps=int(keep.sum()),
        amounts={"input": Amount(float(np.nanmean(data, dtype=np.float64)), "steps")} if is_recorded else {},
        notes=dict.fromkeys(unknown if is_recorded else (*unknown, "input"), NO_OWN_TIME),
    )
