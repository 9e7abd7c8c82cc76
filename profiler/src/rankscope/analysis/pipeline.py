"""Pipelines: how much of the step their ranks wait, what the schedule asks for, and which stage is the slowest.

With p stages, m micro-batches and v chunks of the model per rank, and every stage as busy as the others (b), GPipe, 1F1B and
interleaved 1F1B take b · (v·m + p - 1) / (v·m): a share of (p - 1) / (v·m + p - 1) is bubble (Narayanan et al., "Efficient
Large-Scale Language Model Training on GPU Clusters", 2021). With stages that differ, a stage s is busy for b(s), begins only when
the first micro-batch has come forward through the stages before it, and the last one still has to go back through them: no step
is shorter than the largest of b(s) + (b(0) + … + b(s - 1)) / (v·m). What the step takes beyond that is neither the schedule nor
the cut of the model: transfers, stalls, other collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from rankscope.analysis.intervals import clip, measure, union
from rankscope.analysis.own_time import MINIMUM_STEPS, WARM_UP, excess
from rankscope.analysis.peers import stage_of
from rankscope.analysis.pipeline_result import PipelineResult, StageResult
from rankscope.analysis.significance import LIMIT, block_sums, p_value
from rankscope.analysis.slow import MINIMUM_EFFECT
from rankscope.analysis.steps import Matrix, StepTable
from rankscope.runs.records import CollectiveRecord, Pipeline, RankInfo

NO_BUBBLE: Final = frozenset(("ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"))
"""Schedules whose bubble the formula does not give: they fill it with the gradients of the weights."""


def pipeline_of(
    table: StepTable,
    infos: Mapping[int, RankInfo],
    told: Pipeline | None,
    collectives: Mapping[int, Sequence[CollectiveRecord]],
) -> PipelineResult | None:
    """The pipeline of a run; ``None`` where ranks are in fewer than two stages, or too few steps tell own time.

    Own time is compared in steps that all ranks have, after warm-up; profiled ones only where there are no others.
    ``collectives``: of the profiled steps, per rank.
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
    turns = _turns(told)
    ideal = imbalance = rest = None
    if turns is not None:
        equal = schedule_us(np.full(len(means), means.mean()), turns)
        cut = schedule_us(means, turns)
        ideal, imbalance, rest = equal - float(means.mean()), cut - equal, step - cut
    slowest = _slowest(busy, step)
    return PipelineResult(
        stages=[
            StageResult(stage=stage, ranks=ranks, busy_us=float(mean), bubble=1 - float(mean) / step)
            for (stage, ranks), mean in zip(stages.items(), means, strict=True)
        ],
        schedule=told.schedule if told else None,
        microbatches=told.microbatches if told else None,
        chunks=told.chunks if told else 1,
        steps=own.shape[1],
        step_us=step,
        bubble=1 - float(means.mean()) / step,
        ideal_bubble=None if turns is None else ideal_bubble(len(means), turns),
        ideal_us=ideal,
        imbalance_us=imbalance,
        rest_us=rest,
        slowest_stage=None if slowest is None else list(stages)[slowest],
        slowest_excess=None if slowest is None else float(means[slowest] / np.median(np.delete(means, slowest))) - 1,
        microbatch_imbalance=_microbatch_imbalance([collectives.get(rank, ()) for rank in stages[max(stages)]]),
    )


def _turns(told: Pipeline | None) -> int | None:
    """Micro-batches times chunks of the model per rank (v·m); ``None``: not known, or the schedule is none of the formula's."""
    if told is None or told.microbatches is None or told.schedule in NO_BUBBLE or min(told.microbatches, told.chunks) < 1:
        return None
    return told.microbatches * told.chunks


def ideal_bubble(stages: int, turns: int) -> float:
    """(p - 1) / (v·m + p - 1): the share of the step that ranks of equal stages wait, in ``turns`` (v·m)."""
    return (stages - 1) / (turns + stages - 1)


def schedule_us(busy: Matrix, turns: int) -> float:
    """The shortest step of stages that are ``busy`` [stages] microseconds, in ``turns`` micro-batches times chunks."""
    before = np.cumsum(busy) - busy
    return float((busy + before / turns).max())


def microbatches_us(rows: Sequence[CollectiveRecord]) -> list[float]:
    """Busy time of a last stage between the gradients that it sends, of one step: one less than there are micro-batches.

    Between two of them it works on one micro-batch, and waits for what it receives, which does not count.
    """
    sends = sorted(row.enqueue_unix_ns for row in rows if row.op == "send")
    receives = [(row.enqueue_unix_ns, row.end_unix_ns) for row in rows if row.op == "recv"]
    waits = union(*np.array(receives, dtype=np.int64).reshape(-1, 2).T)
    return [(end - start - measure(clip(waits, start, end))) / 1000 for start, end in pairwise(sends)]


def _stages(table: StepTable, infos: Mapping[int, RankInfo]) -> dict[int, list[int]]:
    stages: dict[int, list[int]] = {}
    for rank in map(int, table.ranks):
        stage = stage_of(infos.get(rank))
        if stage is not None:
            stages.setdefault(stage, []).append(rank)
    # Ranks of which nobody knows the stage make every mean wrong.
    return dict(sorted(stages.items())) if sum(map(len, stages.values())) == len(table.ranks) else {}


def _usable(table: StepTable) -> tuple[Matrix, Matrix] | tuple[None, None]:
    count = len(table.steps)
    own, wall = table.matrix("own_us"), table.matrix("wall_us")
    keep = np.isfinite(own).all(axis=0) & (np.arange(count) >= min(WARM_UP, count // 5))
    plain = keep & ~table.profiled.any(axis=0)
    if plain.sum() >= MINIMUM_STEPS:
        keep = plain
    return (own[:, keep], wall[:, keep]) if keep.sum() >= MINIMUM_STEPS else (None, None)


def _slowest(busy: Matrix, step_us: float) -> int | None:
    over = excess(busy)
    worst = int(over.mean(axis=1).argmax())
    if over[worst].mean() < MINIMUM_EFFECT * step_us:
        return None
    return worst if p_value(block_sums(over.T), worst) <= LIMIT else None


def _microbatch_imbalance(ranks: Sequence[Sequence[CollectiveRecord]]) -> float | None:
    found = []
    for rows in ranks:
        steps: dict[int, list[CollectiveRecord]] = {}
        for row in rows:
            if row.p2p:
                steps.setdefault(row.step, []).append(row)
        for one in steps.values():
            times = microbatches_us(one)
            if len(times) >= 2 and (usual := float(np.median(times))) > 0:
                found.append(max(times) / usual - 1)
    return float(np.median(found)) if found else None
