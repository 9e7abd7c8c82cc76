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
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.arrivals import numbered, sums
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.waits.waiting import Waits
from rankscope.analysis.evidence.compared import StepOwnTimes
from rankscope.analysis.evidence.order import of_blocks
from rankscope.analysis.evidence.peers import stage_of
from rankscope.analysis.evidence.step_table.steps import Matrix, StepTable
from rankscope.analysis.result.costs import PipelineResult
from rankscope.analysis.statistics import excess_of_rank
from rankscope.runs.records import Phase, RankInfo


@dataclass(frozen=True, slots=True)
class PipelineRecords:
    """Step records of a pipeline with a known number of micro-batches."""

    judged: StepOwnTimes
    stages: Mapping[int, int]
    """Stage of each rank."""
    turns: int
    """Micro-batches times chunks of the model per rank (v·m)."""
    on_cpu: bool
    """True if ranks compute on the CPU, where own time off the CPU is a pause."""


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """Waits at matched operations of some steps, in microseconds over all of them."""

    stages: Mapping[int, int | None]
    """Stage of each rank; ``None`` without a pipeline."""
    ranks: Sequence[int]
    """Ranks with the same work."""
    steps: int
    waited_us: Mapping[int, float]
    """Time that others waited for a rank: in sends and receives, and the longest of any one rank at collectives."""
    longest_us: float | None
    """Longest time that any one rank waited at collectives, whichever ranks it waited for; ``None`` without collectives."""


def saved_at_most_us(ranks: Sequence[int], evidence: PipelineRecords | WaitedFor | None) -> float:
    """Return the time per step that healing slow ``ranks`` of one stage, worst first, saves at most.

    Infinite where there is no pipeline, or the evidence gives no bound.
    """
    if isinstance(evidence, PipelineRecords):
        return _by_schedule(ranks, evidence)
    return float("inf") if evidence is None else _by_waits(ranks, evidence)


def schedule_of(judged: StepOwnTimes, infos: Mapping[int, RankInfo], pipeline: PipelineResult | None) -> PipelineRecords | None:
    """Return the evidence of step records; ``None`` where the schedule is not known.

    It holds for schedules that fill the bubble, too: they take less long, and the less of it for stages that others wait for.
    """
    if pipeline is None or pipeline.microbatches is None or min(pipeline.microbatches, pipeline.chunks) < 1:
        return None
    stages = {rank: stage for rank in map(int, judged.table.ranks) if (stage := stage_of(infos.get(rank))) is not None}
    on_cpu = all(info.device_kind == "cpu" for info in infos.values())
    return PipelineRecords(judged, stages, pipeline.microbatches * pipeline.chunks, on_cpu)


_ONCE: Final[tuple[Phase, ...]] = ("data", "h2d", "optimizer", "between_steps")
"""Phases outside of micro-batches."""


def _by_schedule(ranks: Sequence[int], schedule: PipelineRecords) -> float:
    table = schedule.judged.table
    every = [int(rank) for rank in table.ranks]
    slow = np.isin(every, ranks)
    stages: dict[int, NDArray[np.intp]] = {
        stage: np.array([row for row, rank in enumerate(every) if schedule.stages.get(rank) == stage])
        for stage in sorted(set(schedule.stages.values()))
    }
    own_stage = next((rows for rows in stages.values() if slow[rows].any()), None)
    if own_stage is None or len(stages) < 2 or slow[own_stage].all():
        return float("inf")
    healthy = own_stage[~slow[own_stage]]

    def saved(steps: slice) -> float:
        own = table.some("own_us", steps).astype(np.float64)
        once = _once_us(table, steps, own, on_cpu=schedule.on_cpu)
        busy = np.nan_to_num(own - once).clip(min=0)
        healed, healed_once = busy.copy(), once.copy()
        healed[slow] = np.minimum(busy[slow], np.median(busy[healthy], axis=0))
        healed_once[slow] = np.minimum(once[slow], np.median(once[healthy], axis=0))
        by_schedule = _step_us(busy, stages, schedule.turns) - _step_us(healed, stages, schedule.turns)
        return float((by_schedule + (once - healed_once).max(axis=0)).sum())

    return sum(of_blocks(table.profiled.shape, saved)) / max(1, len(table.steps))


def _once_us(table: StepTable, steps: slice, own: Matrix, *, on_cpu: bool) -> Matrix:
    """Return the own time that is outside of micro-batches, or a pause, [ranks, steps]."""
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


def waits_for(
    ranks: Sequence[int], steps: int, stages: Mapping[int, int | None], waited_us: Mapping[int, float], blame: Blame
) -> WaitedFor:
    """Return the evidence of ``ranks`` with the same work, from ``waited_for_us`` and ``blame``."""
    waited = np.bincount(blame.pairs.victim, weights=np.rint(blame.pairs.imposed_us))
    return WaitedFor(stages, ranks, steps, waited_us, float(waited.max()) if len(waited) else None)


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


def _by_waits(ranks: Sequence[int], waits: WaitedFor) -> float:
    rank, stages = ranks[0], waits.stages
    if stages[rank] is None or not waits.waited_us:
        return float("inf")
    others = [peer for peer in waits.ranks if peer not in ranks]
    # How long others wait for a stage by the schedule alone differs between stages.
    replicas = [peer for peer in others if stages[peer] == stages[rank]]
    waited = {peer: waits.waited_us.get(peer, 0.0) for peer in (rank, *others)}
    longer = excess_of_rank(waited, rank, replicas or others) or 0.0
    if replicas and waits.longest_us is not None:
        longer = min(longer, waits.longest_us)
    return max(0.0, longer) / waits.steps
