"""What is known of a pipeline: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

import msgspec


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. Times are means over its ranks and the steps judged."""

    stage: int
    ranks: list[int]
    busy_us: float
    """Own time per step: neither waiting nor transferring."""
    bubble: float
    """Share of the step that its ranks wait."""


class PipelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline, from step records. bubble · step = ideal + imbalance + rest, where the schedule is known."""

    stages: list[StageResult]
    schedule: str | None
    microbatches: int | None
    chunks: int
    """Chunks of the model per rank; more than one in interleaved schedules."""
    steps: int
    """Steps judged."""
    step_us: float
    bubble: float
    """Share of the step that the ranks wait, mean over stages."""
    ideal_bubble: float | None
    """Share that the schedule costs with equal stages; ``None`` where it is not known, or the schedule has no such formula."""
    ideal_us: float | None
    """Per step: waiting that the schedule costs with equal stages as busy as these are on average."""
    imbalance_us: float | None
    """Per step: waiting more because stages differ; below zero where the first stages may well take longer than the last."""
    rest_us: float | None
    """Per step: what neither explains (transfers, stalls, other collectives). Below zero where forward and backward of different
    micro-batches overlap better than the formula has it."""
    slowest_stage: int | None
    """The stage that is busier than the others beyond chance and by 5 % of the step; ``None``: there is none."""
    slowest_excess: float | None
    """Its busy time over the median of the other stages', minus one."""
    microbatch_imbalance: float | None
    """Busiest micro-batch of the last stage over its median one, minus one; from profiled steps, ``None`` without."""
