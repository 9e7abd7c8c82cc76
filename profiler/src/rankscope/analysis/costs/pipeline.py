"""Pipelines: share of the step that ranks wait, share that the schedule causes, and the slowest stage.

A pipeline has p stages, m micro-batches, and v chunks of the model per rank. If every stage is busy for the same time b, a step
of GPipe, 1F1B or interleaved 1F1B takes b · (v·m + p - 1) / (v·m). The share (p - 1) / (v·m + p - 1) of it is bubble (Narayanan
et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021).

With unequal stages, stage s is busy for b(s). It begins only when the first micro-batch has come forward through the stages
before it, and the last one still has to go back through them. So no step is shorter than the largest of
b(s) + (b(0) + … + b(s - 1)) / (v·m), with the times of each stage's usual replica. Time beyond that is due to transfers,
stalls, slow ranks and other collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rankscope.analysis.evidence.compared import MINIMUM_STEPS, unprofiled
from rankscope.analysis.evidence.peers import stage_of
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable
from rankscope.analysis.evidence.typical import after_warm_up
from rankscope.analysis.inference.judging.excess import excess
from rankscope.analysis.inference.judging.significance import LIMIT, block_sums, p_value
from rankscope.analysis.inference.judging.slow_ranks import MINIMUM_EFFECT
from rankscope.analysis.result.costs import PipelineResult, StageResult
from rankscope.analysis.statistics import relative_excess
from rankscope.runs.records import Pipeline, RankInfo

NO_BUBBLE: Final = frozenset(("ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"))
"""Schedules to which the formula does not apply: they fill the bubble with the gradients of the weights."""


def pipeline_of(table: StepTable, infos: Mapping[int, RankInfo], settings: Pipeline | None) -> PipelineResult | None:
    """Return the pipeline analysis of a run.

    ``None`` where ranks are in fewer than two stages, a rank's stage is not known, or too few steps have own time. Own time is
    compared in steps that all ranks have, after warm-up; profiled steps are used only where there are not enough others.
    """
    stages = _stages(table, infos)
    if len(stages) < 2:
        return None
    own, wall = _usable(table)
    if own is None or wall is None:
        return None
    rows = {int(rank): row for row, rank in enumerate(table.ranks)}
    busy = np.stack([own[[rows[rank] for rank in ranks]].mean(axis=0) for ranks in stages.values()])
    step = float(wall.mean())
    means = busy.mean(axis=1)
    # What the work of a stage takes shows in its usual replica: a slower one is a slow rank, and no reason to move layers.
    usual = np.stack([_usual(own[[rows[rank] for rank in ranks]]) for ranks in stages.values()])
    work = usual.mean(axis=1)
    turns = _turns(settings)
    ideal = imbalance = remainder = None
    if turns is not None:
        equal = schedule_us(np.full(len(work), work.mean()), turns)
        cut = schedule_us(work, turns)
        ideal, imbalance = equal - float(work.mean()), cut - equal
        remainder = step - float(means.mean()) - ideal - imbalance
    slowest = _slowest(usual, step)
    return PipelineResult(
        stages=[
            StageResult(stage=stage, ranks=ranks, busy_us=float(mean), bubble=1 - float(mean) / step)
            for (stage, ranks), mean in zip(stages.items(), means, strict=True)
        ],
        schedule=settings.schedule if settings else None,
        microbatches=settings.microbatches if settings else None,
        chunks=settings.chunks if settings else 1,
        steps=own.shape[1],
        step_us=step,
        bubble=1 - float(means.mean()) / step,
        ideal_bubble=None if turns is None else ideal_bubble(len(means), turns),
        ideal_us=ideal,
        imbalance_us=imbalance,
        rest_us=remainder,
        slowest_stage=None if slowest is None else list(stages)[slowest],
        slowest_excess=None if slowest is None else relative_excess(work[slowest], np.delete(work, slowest)),
    )


def _turns(settings: Pipeline | None) -> int | None:
    """Return micro-batches times chunks of the model per rank (v·m); ``None`` where unknown or the formula does not apply."""
    if (
        settings is None
        or settings.microbatches is None
        or settings.schedule in NO_BUBBLE
        or min(settings.microbatches, settings.chunks) < 1
    ):
        return None
    return settings.microbatches * settings.chunks


def ideal_bubble(stages: int, turns: int) -> float:
    """Return the share of the step that ranks of equal stages wait, (p - 1) / (v·m + p - 1), with ``turns`` = v·m."""
    return (stages - 1) / (turns + stages - 1)


def schedule_us(busy: Matrix, turns: int) -> float:
    """Return the shortest step in microseconds of stages that are ``busy`` [stages] microseconds, with ``turns`` = v·m."""
    before = np.cumsum(busy) - busy
    return float((busy + before / turns).max())


def _stages(table: StepTable, infos: Mapping[int, RankInfo]) -> dict[int, list[int]]:
    stages: dict[int, list[int]] = {}
    for rank in map(int, table.ranks):
        stage = stage_of(infos.get(rank))
        if stage is not None:
            stages.setdefault(stage, []).append(rank)
    # With ranks of unknown stage all means would be wrong.
    return dict(sorted(stages.items())) if sum(map(len, stages.values())) == len(table.ranks) else {}


def _usable(table: StepTable) -> tuple[Matrix, Matrix] | tuple[None, None]:
    own, wall = table.matrix("own_us"), table.matrix("wall_us")
    keep = unprofiled(table, np.isfinite(own).all(axis=0) & after_warm_up(len(table.steps)))
    return (own[:, keep], wall[:, keep]) if keep.sum() >= MINIMUM_STEPS else (None, None)


def _usual(own: Matrix) -> Matrix:
    """Return the own times of the replica in the middle, of two the quicker one, [steps], from [replicas of a stage, steps]."""
    usual: Matrix = own[own.mean(axis=1).argsort()[(len(own) - 1) // 2]]
    return usual


def _slowest(busy: Matrix, step_us: float) -> int | None:
    over = excess(busy)
    worst = int(over.mean(axis=1).argmax())
    if over[worst].mean() < MINIMUM_EFFECT * step_us:
        return None
    return worst if p_value(block_sums(over.T), worst) <= LIMIT else None
