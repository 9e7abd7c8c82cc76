"""The JSON of ``rankscope whatif --format json`` (schema ``rankscope.whatif/1``).

What is undefined is ``None`` (JSON ``null``), never 0. Fields are only ever added.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.result import Cost

WHATIF_SCHEMA: Final = "rankscope.whatif/1"

Status = Literal["ok", "insufficient_data"]


class WhatIfSource(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and which evidence the graph was built from."""

    kind: Literal["run", "traces", "operations"]
    """``operations``: a file of traced operations (Parquet)."""
    path: str
    name: str | None
    evidence: Literal["operations", "steps", "windows", "traces"] | None
    """What the durations are from; ``None`` with ``insufficient_data``. ``steps``: own and blocked time per phase of every step;
    ``windows`` and ``traces``: collectives of profiled steps.
    """
    ranks: int
    """Ranks in the graph."""
    world_size: int | None
    """GPUs (or processes) that a step costs: what hours are counted with."""
    steps: int
    """Steps in the graph."""
    steps_left_out: int
    """Steps seen that are not in it: incomplete, profiled, or warm-up."""
    simulated: bool = False
    warnings: list[str] = []


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of the job does to the step time. Seconds are per step."""

    slowdown: float
    """Step time with only this part as it was and all else ideal, over the ideal step time."""
    without_step_seconds: float
    """Step time with this part ideal and all else as it was."""
    saved_seconds: float
    """``step_seconds`` minus that. Parts overlap, so these need not add up; negative: it would take longer."""
    share: float | None
    """``saved_seconds`` over all that is lost; ``None`` when hardly anything is."""
    gpu_hours_lost: float | None
    """``saved_seconds`` over all steps and ranks; ``None`` for ranks on CPUs unless a price is given."""
    cost: Cost | None
    slowdown_per_step: list[float | None] | None = None
    """``slowdown`` of each of ``steps``, where asked for."""


class RankEffect(Effect, frozen=True, kw_only=True):
    """One rank (of tensor-parallel ranks, the one that was traced)."""

    rank: int
    host: str | None = None
    dp_rank: int | None = None
    stage: int | None = None


class ReplicaEffect(Effect, frozen=True, kw_only=True):
    """All ranks with one place in the data-parallel dimension."""

    dp_rank: int


class StageEffect(Effect, frozen=True, kw_only=True):
    """All ranks of one pipeline stage."""

    stage: int


class OpEffect(Effect, frozen=True, kw_only=True):
    """One type of operation on all ranks, or one phase of the step."""

    op: str


class CauseEffect(Effect, frozen=True, kw_only=True):
    """What the records say made ranks slow, on all ranks."""

    cause: str


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One step, in seconds."""

    step: int
    measured_seconds: float
    step_seconds: float
    ideal_seconds: float
    slowdown: float | None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the job would be without stragglers, and who and what is to blame. Step times are means over the steps."""

    schema: str = WHATIF_SCHEMA
    status: Status
    source: WhatIfSource
    summary: str
    """One sentence for a person."""
    measured_step_seconds: float | None = None
    step_seconds: float | None = None
    """The step on the graph, with every duration as it was: without what the graph does not know of."""
    ideal_step_seconds: float | None = None
    """The step on the graph without any straggler."""
    discrepancy: float | None = None
    """``measured_step_seconds`` / ``step_seconds``: how well the graph explains the measured time; 1 is perfectly."""
    slowdown: float | None = None
    """S: ``step_seconds`` / ``ideal_step_seconds``."""
    m_worker: float | None = None
    """M_W: share of the loss that is gone when the slowest 3 % of the ranks (at least one) are made ideal."""
    m_stage: float | None = None
    """M_S: share of the loss that is gone when the last pipeline stage is made ideal; ``None`` without a pipeline."""
    slowest_ranks: list[int] = []
    """The ranks of ``m_worker``."""
    saved_seconds: float | None = None
    """Per step, without any straggler."""
    gpu_hours_lost: float | None = None
    """In the steps of the graph."""
    cost: Cost | None = None
    by_rank: list[RankEffect] = []
    """Largest slowdown first, as in the other lists; at most the 64 ranks with the largest."""
    by_dp_rank: list[ReplicaEffect] = []
    by_stage: list[StageEffect] = []
    by_op: list[OpEffect] = []
    by_cause: list[CauseEffect] = []
    steps: list[StepTimes] | None = None
    """Each step, where asked for."""
