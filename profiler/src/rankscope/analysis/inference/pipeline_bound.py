"""What healing a slow rank of a pipeline saves, at most. A rank that its schedule lets wait may take longer at nearly no cost.

The bound is the least of what the evidence gives:

- The schedule, where step records have own times. In GPipe (Huang et al., 2019) the slowest stage is busy without a break but for
  the time in which one micro-batch passes all other stages, there and back. So a step takes the largest of
  b(s) + (sum of the other b) / (v·m), with the longest time b of the ranks of each stage, m micro-batches, and v chunks of the
  model per rank. 1F1B and interleaved schedules come close to it. Time outside of micro-batches, as in the data loader or the
  optimizer, is no part of the schedule and counts in full. So do pauses, which fall into one micro-batch and delay all after it.
- The waits, where operations are matched across ranks. Others of the rank's stage are in other replicas, or in its
  tensor-parallel group. They wait for it at collectives, as long as it delays the step. Beyond that, sends and receives must wait
  longer for it than for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import numbered, sums
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.waits.waiting import Waits
from rankscope.analysis.evidence.compared import OwnTimes, StepOwnTimes
from rankscope.analysis.evidence.order import of_blocks
from rankscope.analysis.evidence.peers import stage_of
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable
from rankscope.analysis.result.costs import PipelineResult
from rankscope.analysis.statistics import excess_of_rank
from rankscope.runs.records import Phase, RankInfo

_ONCE: Final[tuple[Phase, ...]] = ("data", "h2d", "optimizer", "between_steps")
"""Phases outside of micro-batches."""


def saved_by_schedule_us(
    ranks: Sequence[int], judged: StepOwnTimes, infos: Mapping[int, RankInfo], pipeline: PipelineResult | None
) -> float:
    """Return the time per step that healing slow ``ranks`` of one stage saves at most, by the schedule of their pipeline.

    Infinite where there is no pipeline, or its schedule is not known. The bound holds for schedules that fill the bubble, too:
    they take less long, and the less of it for stages that others wait for.
    """
    if pipeline is None or pipeline.microbatches is None or min(pipeline.microbatches, pipeline.chunks) < 1:
        return float("inf")
    turns, table = pipeline.microbatches * pipeline.chunks, judged.table
    every = [int(rank) for rank in table.ranks]
    slow = np.isin(every, ranks)
    stage_of_row = [stage_of(infos.get(rank)) for rank in every]
    stages: dict[int, NDArray[np.intp]] = {
        stage: np.array([row for row, other in enumerate(stage_of_row) if other == stage])
        for stage in sorted({stage for stage in stage_of_row if stage is not None})
    }
    own_stage = next((rows for rows in stages.values() if slow[rows].any()), None)
    if own_stage is None or len(stages) < 2 or slow[own_stage].all():
        return float("inf")
    healthy = own_stage[~slow[own_stage]]
    on_cpu = all(info.device_kind == "cpu" for info in infos.values())

    def saved(steps: slice) -> float:
        own = table.some("own_us", steps).astype(np.float64)
        once = _once_us(table, steps, own, on_cpu=on_cpu)
        busy = np.nan_to_num(own - once).clip(min=0)
        healed, healed_once = busy.copy(), once.copy()
        healed[slow] = np.minimum(busy[slow], np.median(busy[healthy], axis=0))
        healed_once[slow] = np.minimum(once[slow], np.median(once[healthy], axis=0))
        by_schedule = _step_us(busy, stages, turns) - _step_us(healed, stages, turns)
        return float((by_schedule + (once - healed_once).max(axis=0)).sum())

    return sum(of_blocks(table.profiled.shape, saved)) / max(1, len(table.steps))


def _once_us(table: StepTable, steps: slice, own: Matrix, *, on_cpu: bool) -> Matrix:
    """Return the own time that is outside of micro-batches, or a pause, [ranks, steps]. On the CPU, time off it is a pause."""
    parts = [*(f"own_{phase}_us" for phase in _ONCE), "gc_us"]
    once: Matrix = np.sum([np.nan_to_num(table.some(name, steps)) for name in parts], axis=0, dtype=np.float64)
    if on_cpu:
        running = table.some("cpu_us", steps) + np.nan_to_num(table.some("run_queue_us", steps))
        once += np.nan_to_num(own - running - once).clip(min=0)
    return once


def _step_us(busy: Matrix, stages: Mapping[int, NDArray[np.intp]], turns: int) -> NDArray[np.float64]:
    """Return the time of each step, [steps], from the time that ranks are busy, [ranks, steps], see the module."""
    longest = np.stack([busy[rows].max(axis=0) for rows in stages.values()])
    times: NDArray[np.float64] = (longest * (1 - 1 / turns)).max(axis=0) + longest.sum(axis=0) / turns
    return times


def waited_for_us(blame: Blame, waits: Waits) -> dict[int, float]:
    """Return, per rank, the time in all steps that others waited for it in sends and receives, and the longest wait for it of any
    one rank at collectives.
    """
    waited: dict[int, float] = {}
    of_pairs = waits.is_of_pair
    for origin, ns in zip(waits.origin[of_pairs].tolist(), (waits.end - waits.start)[of_pairs].tolist(), strict=True):
        waited[origin] = waited.get(origin, 0.0) + ns / 1000
    pairs = blame.pairs
    first, number = numbered(pairs.origin, pairs.victim)
    longest: dict[int, float] = {}
    for origin, us in zip(
        pairs.origin[first].tolist(), sums(number, np.rint(pairs.imposed_us), len(first)).tolist(), strict=True
    ):
        longest[origin] = max(longest.get(origin, 0), us)
    return {origin: waited.get(origin, 0.0) + longest.get(origin, 0) for origin in waited.keys() | longest.keys()}


def saved_by_waits_us(
    ranks: Sequence[int], group: OwnTimes, stages: Mapping[int, int | None], waited_us: Mapping[int, float], blame: Blame
) -> float:
    """Return the time per step that healing slow ``ranks`` of a ``group`` saves at most, by the waits at matched operations.

    ``ranks``: those of one stage, worst first. ``stages``: stage of each rank; ``None`` without a pipeline. ``waited_us``: see
    ``waited_for_us``. Infinite without a pipeline, or without waits.
    """
    rank = ranks[0]
    if stages[rank] is None or not waited_us:
        return float("inf")
    others = [peer for peer in group.ranks if peer not in ranks]
    # How long others wait for a stage by the schedule alone differs between stages.
    replicas = [peer for peer in others if stages[peer] == stages[rank]]
    waited = {peer: waited_us.get(peer, 0.0) for peer in (rank, *others)}
    longer = excess_of_rank(waited, rank, replicas or others) or 0.0
    at_collectives = np.bincount(blame.pairs.victim, weights=np.rint(blame.pairs.imposed_us))
    if replicas and len(at_collectives):
        # No rank waited there for longer, whichever ranks it waited for.
        longer = min(longer, float(at_collectives.max()))
    return max(0.0, longer) / len(group.steps)
