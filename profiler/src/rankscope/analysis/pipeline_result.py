"""Results on a pipeline: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

import msgspec


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results on one stage. Times are means over its ranks and the steps judged."""

    stage: int
    ranks: list[int]
    busy_us: float
    """Own time per step: neither waiting nor transferring."""
    bubble: float
    """Share of the step that its ranks wait."""


class PipelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results on a pipeline, from step records. Where the schedule is known, bubble · step = ideal + imbalance + rest."""

    stages: list[StageResult]
    schedule: str | None
    microbatches: int | None
    chunks: int
    """Chunks of the model per rank; more than one in interleaved schedules."""
    steps: int
    """Number of steps judged."""
    step_us: float
    bubble: float
    """Share of the step that the ranks wait, mean over stages."""
    ideal_bubble: float | None
    """Share that the schedule costs with equal stages; ``None`` where the schedule is not known or the formula does not apply."""
    ideal_us: float | None
    """Waiting per step that the schedule costs with equal stages, each as busy as these are on average."""
    imbalance_us: float | None
    """Additional waiting per step because stages differ; below zero where the first stages can take longer than the last."""
    rest_us: float | None
    """Waiting per step that neither explains (transfers, stalls, other collectives). Below zero where forward and backward of
    different micro-batches overlap better than in the formula."""
    slowest_stage: int | None
    """Stage that is busier than the others beyond chance and by 5 % of the step; ``None`` without one."""
    slowest_excess: float | None
    """Busy time of the slowest stage over the median of the other stages, minus one."""
    microbatch_imbalance: float | None
    """Busiest micro-batch of the last stage over its median one, minus one; from profiled steps, ``None`` without them."""
