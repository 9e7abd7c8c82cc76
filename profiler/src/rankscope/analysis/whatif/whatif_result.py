"""JSON of ``rankscope whatif --format json`` (schema ``rankscope.whatif/1``).

Undefined values are ``None`` (JSON ``null``), never 0. Fields may be added, but are never removed or changed.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.result.analysis import Cost

WHATIF_SCHEMA: Final = "rankscope.whatif/1"

Status = Literal["ok", "insufficient_data"]


class WhatIfSource(msgspec.Struct, frozen=True, kw_only=True):
    """Analysed input, and the evidence that the graph was built from."""

    kind: Literal["run", "traces", "operations"]
    """Kind of the input; ``operations``: a file of traced operations (Parquet)."""
    path: str
    name: str | None
    evidence: Literal["operations", "steps", "windows", "traces"] | None
    """Source of the durations; ``None`` with ``insufficient_data``. ``steps``: own and blocked time per phase of every step;
    ``windows`` and ``traces``: collectives of profiled steps.
    """
    ranks: int
    """Number of ranks in the graph."""
    world_size: int | None
    """Number of GPUs (or processes) with which hours are counted."""
    steps: int
    """Number of steps in the graph."""
    steps_left_out: int
    """Number of steps seen that are not in the graph: incomplete, profiled, rare, or warm-up."""
    trained_steps: int | None = None
    """Number of steps with which hours are counted, as in the verdict: all that the run trained; ``None``: those in the graph."""
    rare_steps: int = 0
    """Number of steps left out because they took much longer than the typical one."""
    rare_share: float | None = None
    """Share of the run's time that these took beyond as many typical steps; ``None``: not from step records."""
    estimated_share: float | None = None
    """Share of the ranks' steps in the graph that a rank did not record, so that its times are estimated; ``None``: not from
    step records."""
    simulated: bool = False
    warnings: list[str] = []


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of one part of the job on the step time. Seconds are per step."""

    slowdown: float
    """Step time with only this part as it was and all else ideal, over the ideal step time."""
    without_step_seconds: float
    """Step time with this part ideal and all else as it was."""
    saved_seconds: float
    """``step_seconds`` - ``without_step_seconds``; negative: a step would take longer. Parts overlap, so savings need not add
    up."""
    share: float | None
    """``saved_seconds`` of the part over those of the job (``WhatIf``); ``None`` when hardly any time is lost, or the graph does
    not show all that is."""
    gpu_hours_lost: float | None
    """``saved_seconds`` over all steps and ranks of the run; ``None`` for ranks on CPUs unless a price is given."""
    cost: Cost | None
    slowdown_per_step: list[float | None] | None = None
    """``slowdown`` in each of ``steps``, if requested."""


class RankEffect(Effect, frozen=True, kw_only=True):
    """Effect of one rank (of tensor-parallel ranks, the traced one)."""

    rank: int
    host: str | None = None
    dp_rank: int | None = None
    stage: int | None = None


class HostEffect(Effect, frozen=True, kw_only=True):
    """Effect of the ranks of one host together; only of hosts of several ranks, where there are other hosts."""

    host: str
    ranks: list[int]
    """Ranks of the host that take part in its slowness, as in the verdict; all where none does."""


class ReplicaEffect(Effect, frozen=True, kw_only=True):
    """Effect of all ranks of one position in the data-parallel dimension."""

    dp_rank: int


class StageEffect(Effect, frozen=True, kw_only=True):
    """Effect of all ranks of one pipeline stage."""

    stage: int


class OpEffect(Effect, frozen=True, kw_only=True):
    """Effect of one type of operation, or of one phase of the step, on all ranks."""

    op: str


class CauseEffect(Effect, frozen=True, kw_only=True):
    """Effect of one cause of slowness in the records, on all ranks."""

    cause: str
    """Cause of the verdict's table, or its explanation ``cpu_contention``; ``unknown``: no signal explains the rest."""
    lost_seconds: float
    """Time per step that the cause took on the ranks that the others waited for. All causes add up to ``saved_seconds`` of the
    job."""
    lost_share: float | None
    """``lost_seconds`` over their sum; ``None`` when hardly any time is lost."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one step, in seconds."""

    step: int
    measured_seconds: float
    step_seconds: float
    ideal_seconds: float
    slowdown: float | None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Speed of the job without stragglers, and the parts to blame. Step times are means over the steps in the graph; from step
    records, these are the typical steps that the verdict is about.
    """

    schema: str = WHATIF_SCHEMA
    status: Status
    source: WhatIfSource
    summary: str
    """Short summary for people."""
    measured_step_seconds: float | None = None
    step_seconds: float | None = None
    """Step time played on the graph with every duration as it was; it lacks time that the graph does not model."""
    ideal_step_seconds: float | None = None
    """Step time played on the graph without any straggler."""
    discrepancy: float | None = None
    """``measured_step_seconds`` / ``step_seconds``: agreement of the graph with the measured time; 1 is perfect."""
    slowdown: float | None = None
    """S: ``step_seconds`` / ``ideal_step_seconds``."""
    m_worker: float | None = None
    """M_W: share of the loss that is gone when the slowest 3 % of the ranks (at least one) are healed, see
    ``savings_of``."""
    m_stage: float | None = None
    """M_S: share of the loss that is gone when the last pipeline stage is made ideal; ``None`` without a pipeline."""
    slowest_ranks: list[int] = []
    """Ranks that ``m_worker`` is of."""
    saved_seconds: float | None = None
    """Seconds per step saved without any straggler."""
    gpu_hours_lost: float | None = None
    """GPU-hours lost to all stragglers: ``saved_seconds`` x ``trained_steps`` x ``world_size`` of the source."""
    cost: Cost | None = None
    savings_of: Literal["verdict", "graph"] = "graph"
    """What ranks and hosts save: as the ``verdict`` computes it, from the same own times and steps, so that a healed one still
    varies as the others do; or as played on the ``graph``, with ideal ones."""
    by_rank: list[RankEffect] = []
    """Effects of at most 64 ranks; as in the other lists but ``by_cause``, the largest slowdown comes first."""
    by_host: list[HostEffect] = []
    """Effects of at most 64 hosts."""
    by_dp_rank: list[ReplicaEffect] = []
    by_stage: list[StageEffect] = []
    by_op: list[OpEffect] = []
    by_cause: list[CauseEffect] = []
    """Effects of the causes that the records have a signal for, and of the rest; the largest ``lost_seconds`` comes first."""
    steps: list[StepTimes] | None = None
    """Times of each step, if requested."""
