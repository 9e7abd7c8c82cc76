"""Results about cost: waterfall, wait attribution, throughput, memory, pipeline and advice."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.runs.durations import DurationSource

PartName = Literal[
    "ideal", "compute", "exposed_communication", "straggler_wait", "copies", "input", "host", "pipeline_bubble", "unexplained"
]
PartSource = Literal["steps", "windows", "traces", DurationSource]

MEANING: Final[dict[PartName, str]] = {
    "ideal": "the floating-point operations of the step at the device's peak",
    "compute": "compute beyond that; all of it where no ideal is known",
    "exposed_communication": "communication that no compute hides, without waiting for later ranks",
    "straggler_wait": "waiting for the last rank",
    "copies": "copies that nothing hides",
    "input": "waiting for the data loader",
    "host": "the host does not keep the device busy; on CPUs: neither computing nor waiting for other ranks or data",
    "pipeline_bubble": "the pipeline's ranks wait for each other",
    "unexplained": "what no part that is known explains",
}
"""Meaning of each part, in the order of the waterfall."""


class WaterfallPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step. Its time is ``None`` if unknown, and is then counted in ``unexplained``."""

    name: PartName
    us: float | None
    share: float | None
    """Share of the step."""
    source: PartSource | None = None
    """Source of the part; ``None`` if the part is unknown, and for ``unexplained``."""
    note: str | None = None
    """Reason why the part is unknown, or other time that it includes."""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Waterfall of a step, whose known parts sum to ``step_us``, to the nanosecond."""

    unit: Literal["step", "window"]
    step_us: float
    """Mean step time after warm-up, without rare steps, and without profiled ones if enough others remain; for traces, the mean
    window."""
    steps: int
    """Number of steps (for windows: profiled steps) in the mean."""
    parts: list[WaterfallPart]
    """Parts in the order of the waterfall, each exactly once."""
    extent_us: float | None = None
    """Time from the first start on any rank to the last end on any, on the common clock; for traces with matched collectives.
    A verdict's shares and slowdown refer to it, and ``rankscope whatif`` simulates it."""

    def share(self, name: PartName) -> float | None:
        """Return the share of one part; ``None`` if unknown."""
        return next(part.share for part in self.parts if part.name == name)


MAX_LEDGER_ROWS: Final = 256
"""Maximum number of rows listed in the matrix; the rest is summed up."""

MAX_GROUPS: Final = 64
MAX_RANKS: Final = 64
"""Maximum number of listed members of a group."""

LedgerSource = Literal["steps", "windows", "traces", DurationSource]


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Wait that one rank imposed on another in one process group."""

    group: int
    """Position in ``by_group``."""
    origin: int
    """Rank that is charged. It may be outside the group, having delayed the rank that came last there."""
    victim: int
    imposed_us: float
    imposed_exposed_us: float
    """Exposed part of ``imposed_us``, which no compute of the victim hid."""
    steps: int
    """Number of steps in which ``origin`` delayed ``victim``."""


class GroupLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait in one process group. Waits that overlap count once for each victim and step."""

    group: str | None
    """Name; ``None`` with step records, which do not record groups: the group is then the set of compared ranks."""
    size: int
    ranks: list[int]
    """Members of the group, the first 64."""
    imposed_us: float
    imposed_exposed_us: float
    worst: int | None
    """Rank that is charged with most exposed imposed wait; ``None`` when no rank waited."""


class LedgerRest(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of the rows that the matrix does not list."""

    rows: int
    imposed_us: float
    imposed_exposed_us: float


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Imposed wait by origin and victim, most costly first."""

    source: LedgerSource
    """Data source. Windows and traces have a few steps and every collective; step records have all steps and no groups."""
    steps: int
    """Number of analysed steps."""
    groups: int
    by_group: list[GroupLedger]
    """The 64 groups with the most exposed imposed wait."""
    matrix: list[LedgerRow]
    """Sparse matrix: the 256 rows with the most exposed imposed wait."""
    rest: LedgerRest
    """Sum of all other rows."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over the steps of the waterfall. ``None``: not recorded, or not by all ranks that are needed."""

    steps: int
    step_us: float
    """Mean wall time of a typical step."""
    replicas: int | None
    """Number of different batches per step: ranks that share one (tensor, pipeline, … parallel) count once. ``None``: not all
    ranks of the world are recorded."""
    samples_per_second: float | None
    """Rate of the whole job."""
    tokens_per_second: float | None
    samples_per_second_per_rank: float | None
    """Rate of the job divided by its world size, because every GPU is paid for."""
    tokens_per_second_per_rank: float | None
    flops_per_second_per_rank: float | None
    """Rate from the floating-point operations per step that the script reports; mean over the ranks that report them."""
    gpu_name: str | None
    """GPU model; ``None`` also if the ranks have different ones."""
    peak_dtype: str | None
    """Data type whose peak ``mfu`` refers to: bf16 (dense), or fp16 if the GPU has no bf16."""
    peak_flops: float | None
    """Peak FLOP/s by the table in ``analysis/evidence/throughput.py``; ``None``: not in it, or GPUs of several models."""
    mfu: float | None
    """Model FLOP/s utilisation: ``flops_per_second_per_rank`` / ``peak_flops``."""
    mfu_by_dtype: dict[str, float] = {}
    """MFU against the peak of each data type of the GPU, because the type that the model computes in is not recorded."""


MemoryKind = Literal["device", "host"]


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one rank's memory over the steps: the Theil-Sen slope, and its 99 % interval for all ranks together."""

    rank: int
    kind: MemoryKind
    """``device``: memory held by tensors at a step's end; ``host``: resident memory of the process."""
    samples: int
    bytes_per_1000_steps: float
    low_bytes_per_1000_steps: float
    high_bytes_per_1000_steps: float
    leaking: bool
    """True if the memory grows steadily and beyond chance, still grows, and has grown by 1 % of its start value and by 1 MiB."""
    steps_until_full: int | None
    """Maximum number of steps until the device is full; ``None`` for the host, without a leak, or with unknown device size."""


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank; values that are not recorded are ``None``, such as those of a device on CPU ranks."""

    rank: int
    samples: int
    allocated_bytes: int | None
    """Held by tensors at the end of a step; the last sample."""
    reserved_bytes: int | None
    """Held by the allocator; the highest sample."""
    peak_allocated_bytes: int | None
    device_bytes: int | None
    """Size of the device's memory, where hardware samples report it."""
    peak_share: float | None
    """peak_allocated / device."""
    fragmentation: float | None
    """1 - peak_allocated / reserved: share of the allocator's memory that the rank's tensors never needed at one time; ``None``
    where the peak was reset and is above the highest reserved sample."""
    resident_bytes: int | None
    """Resident memory of the process on the host; the last sample."""
    allocator_retries: int | None
    """Number of allocations so far that failed at first and made the allocator release its cache."""
    later_allocator_retries: int | None = None
    """Those of them after the first sample, and so not at start-up; ``None`` with fewer than two samples."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of all ranks with samples."""

    ranks: list[RankMemory]
    growth: list[MemoryGrowth]
    """Growth of ranks with enough samples, fastest first."""


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
    """Waiting per step that neither explains: transfers, stalls, slow ranks, other collectives. Below zero where forward and
    backward of different micro-batches overlap better than in the formula."""
    slowest_stage: int | None
    """Stage that is busier than the others beyond chance and by 5 % of the step; ``None`` without one."""
    slowest_excess: float | None
    """Busy time of the slowest stage over the median of the other stages, minus one."""


class AdviceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that supports an advice."""

    name: str
    value: float
    unit: str
    source: str | None
    """Source of the figure: ``steps``, ``windows`` or ``traces``; ``None`` if it comes from the verdict."""
    stage: int | None = None
    """Pipeline stage of the figure: the stage with the largest value. ``None``: the figure is of the whole job."""
    limit: str
    """Condition that the value meets, such as ``>= 0.05``."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to try."""

    name: str
    evidence: list[AdviceEvidence]
    """Figures that all meet their conditions. Nothing is advised where a figure is missing."""
    action: str
    gain_share_at_most: float | None
    """Largest share of the step that it can save: an upper bound, not a forecast. ``None`` where it saves no time by itself."""
    gain_us_at_most: float | None
    """``gain_share_at_most`` in microseconds per step."""
    gain_formula: str | None
    """Formula of the bound, in names of figures."""
    cost_share_at_most: float | None = None
    """Cost of the advice as a share of the step, where it has one."""
    check: str
    """Way to check that it helped."""
