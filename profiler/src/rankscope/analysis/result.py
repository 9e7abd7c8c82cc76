"""The result of an analysis: the JSON of ``rankscope analyze --format json`` (schema ``rankscope.analysis/1``).

What is undefined is ``None`` (JSON ``null``), never 0. Fields are only ever added.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.advice_result import Advice
from rankscope.analysis.bandwidth_result import CollectiveBandwidth, DirectedWait
from rankscope.analysis.clock_result import RankClock
from rankscope.analysis.detail_result import CommunicationPart, RankDetail
from rankscope.analysis.ledger_result import Ledger
from rankscope.analysis.memory_result import Memory
from rankscope.analysis.pipeline_result import PipelineResult
from rankscope.analysis.throughput_result import Throughput
from rankscope.analysis.waterfall_result import Waterfall
from rankscope.runs.records import DeviceKind, Phase, WindowBasis

ANALYSIS_SCHEMA: Final = "rankscope.analysis/1"

Kind = Literal[
    "balanced",
    "straggler",
    "communication_bound",
    "input_bound",
    "host_bound",
    "compute_bound",
    "pipeline_bubble",
    "hang",
    "insufficient_data",
]
Pattern = Literal["fixed", "intermittent", "rotating"]
Cause = Literal["input", "host", "gc", "checkpoint", "compute", "imbalance", "communication", "unknown"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What was analysed, and how much of what there should be was there."""

    kind: Literal["run", "traces"]
    path: str
    ranks: int
    """Ranks with evidence."""
    world_size: int | None
    steps: int
    coverage: float | None
    """Ranks x steps with evidence over those expected, 0 to 1."""
    simulated: bool
    run_id: str | None = None
    name: str | None = None
    recorder_share: float | None = None
    """Share of its step time that the recorder took on the rank where it took most; known once a rank has ended."""
    recorder_budget: float | None = None
    """The share that it was allowed."""
    unreadable: list[str] = []
    """Files and folders of a run of which nothing could be read, as paths inside it: what they hold is missing above."""
    warnings: list[str] = []
    """What was damaged or left out, one sentence each."""


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """One rank. Times are microseconds over its whole window (traces), or summed over its profiled steps (runs).

    compute + exposed_communication + exposed_memcpy + idle == window; all of them ``None`` when nothing was profiled, and idle
    where the trace is ``truncated``.
    """

    rank: int
    host: str | None
    gpu_uuid: str | None
    device_kind: DeviceKind | None
    attempt: int
    steps: int
    """Steps with evidence of any kind."""
    window_basis: WindowBasis | None
    window_us: float | None
    compute_us: float | None
    communication_us: float | None
    overlap_us: float | None
    exposed_communication_us: float | None
    memcpy_us: float | None
    exposed_memcpy_us: float | None
    idle_us: float | None
    overlap_ratio: float | None
    """overlap / communication; ``None`` when there was no communication."""
    transfer_us: float | None
    """Communication time without waiting: each matched collective counted with its shortest duration over the ranks, sends,
    receives and operations with a root with their duration less the wait in it."""
    wait_us: float | None
    """Time in matched collectives beyond ``transfer_us``: waiting for later ranks."""
    blocked_us: float | None
    """Median blocked time per step from the always-on records."""
    own_us: float | None = None
    """Median own time (wall - blocked) per step from the always-on records."""
    wall_us: float | None = None
    """Median wall time per step from the always-on records."""
    end_reason: str | None = None
    communication_parts: CommunicationPart | None = None
    """Communication in matched collectives, as transferring and waiting, hidden and exposed. ``None`` without any matched,
    and for runs."""
    class_us: dict[str, float] | None = None
    """Class of kernels or operators to the time in which any of them ran, over the same windows as ``compute_us``. Classes may
    run side by side. This and the next three are ``None`` where they are not known for all windows; of traces, unless details are
    asked for."""
    recompute_us: float | None = None
    """Time in which anything ran that activation checkpointing computed again."""
    idle_starved_us: float | None = None
    """Idle as nothing had been launched: the host came too late."""
    idle_queued_us: float | None = None
    """Idle though work had been launched."""
    detail: RankDetail | None = None
    """Streams, classes of kernels, copies, launches …; ``None`` unless asked for, and for runs, which keep no events."""
    clock: RankClock | None = None
    """How far its clock was off; ``None`` without a matched collective."""
    truncated: bool = False
    """Its trace lacks a part: times are of what is left of it, ``None`` where nothing is, and in no mean."""


class CollectiveMatching(msgspec.Struct, frozen=True, kw_only=True):
    """How the collectives of the ranks were put together."""

    matched: int
    """Collective instances found on every rank of their group."""
    unmatched: int
    excluded: dict[str, int]
    """Instances left out on purpose, by reason (``p2p``, ``broadcast``, …): nothing tells who waited for whom in them."""
    method: Literal["sequence", "order"] | None
    clock_residual_us: float | None
    """Median disagreement of the ends of matched collectives after clock correction: no lag below it is claimed."""
    unmatched_by: dict[str, int] = {}
    """Why instances did not match (``rank_missing``, ``bytes_differ``, …); adds up to ``unmatched``."""
    by_op: list[CollectiveBandwidth] = []
    """Bandwidth per operation, process group and size; most transfer time first."""
    explained_share: float | None = None
    """Of traces: share of the ranks' communication time that is in matched collectives; waiting in the rest is not seen. ``None``
    without communication, and for runs."""
    waits: list[DirectedWait] = []
    """Who waited for whom in sends, receives and operations with a root; longest first."""


class ImposedWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long other ranks waited for this one, summed over victims."""

    rank: int
    imposed_us: float
    imposed_exposed_us: float
    """The part no compute hid: the part that costs anything."""
    share: float | None
    """Of all imposed wait; ``None`` when nobody waited."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Money."""

    amount: float
    currency: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: who, why, how much, what next."""

    kind: Kind
    rank: int | None = None
    ranks: list[int] = []
    pattern: Pattern | None = None
    cause: Cause | None = None
    explained_by: str | None = None
    phase: Phase | None = None
    group: str | None = None
    stage: int | None = None
    steps: tuple[int, int] | None = None
    """First step and the step after the last that the verdict speaks of."""
    evidence_source: Literal["steps", "windows", "traces"] | None = None
    confidence: float | None = None
    """0 to 1."""
    slowdown: float | None = None
    """Actual step time over the step time without the cause; 1.31 = the job takes 31 % longer."""
    gpu_hours_lost: float | None = None
    cost: Cost | None = None
    summary: str
    """One sentence for a person."""
    next: list[str] = []
    """Commands or actions, most useful first."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One number a finding rests on."""

    name: str
    value: float
    unit: str
    detail: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found, with its evidence."""

    kind: Kind
    rank: int | None = None
    host: str | None = None
    cause: Cause | None = None
    explained_by: str | None = None
    phase: Phase | None = None
    pattern: Pattern | None = None
    steps: tuple[int, int] | None = None
    confidence: float | None = None
    slowdown: float | None = None
    gpu_hours_lost: float | None = None
    summary: str
    evidence: list[Evidence] = []


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``analyze`` knows."""

    schema: str = ANALYSIS_SCHEMA
    source: Source
    ranks: list[RankResult]
    collectives: CollectiveMatching
    imposed_wait: list[ImposedWait]
    """Most imposed first."""
    imposed_wait_source: Literal["steps", "windows", "traces"] | None = None
    """What ``imposed_wait`` was read from; ``None`` when it is empty. Windows see a few steps sharply, step records all steps."""
    ledger: Ledger | None = None
    """Who delayed whom, by process group; ``None`` where nothing tells."""
    verdict: Verdict
    findings: list[Finding]
    """Most costly first."""
    pipeline: PipelineResult | None = None
    """Bubbles and stages; ``None`` without a pipeline, or where the records do not tell own time."""
    waterfall: Waterfall | None = None
    """Where a step's time goes; ``None`` with too few steps and no profiled window."""
    throughput: Throughput | None = None
    """Of a run; ``None`` for traces and captures."""
    memory: Memory | None = None
    """``None`` where no record has a sample."""
    advice: list[Advice] = []
    """What to try, most to gain first, each with its evidence, a bound of the gain and how to check it."""
