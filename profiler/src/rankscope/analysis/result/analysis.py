"""The result of an analysis: the JSON of ``rankscope analyze --format json`` (schema ``rankscope.analysis/1``).

Undefined values are ``None`` (JSON ``null``), never 0. Later versions only add fields.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.hang.hang_result import StandingRank
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.collectives import CollectiveBandwidth, DirectedWait, RankClock
from rankscope.analysis.result.costs import Advice, Ledger, Memory, PipelineResult, Throughput, Waterfall
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.result.detail import CommunicationPart, RankDetail
from rankscope.runs.durations import DurationSource
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


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Amount of money."""

    amount: float
    currency: str


def gpu_time_loss(hours: float, *, accelerated: bool, price: float | None, currency: str) -> tuple[float | None, Cost | None]:
    """Return lost ``hours`` of ranks as GPU-hours, and their cost; ``None`` where they are not known."""
    # Ranks on CPUs lose no GPU time, unless the user gives a price for them.
    if not accelerated and price is None:
        return None, None
    return hours, None if price is None else Cost(amount=hours * price, currency=currency)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source of the analysis, and how complete it was."""

    kind: Literal["run", "traces", DurationSource]
    path: str
    ranks: int
    """Number of ranks with evidence."""
    world_size: int | None
    """Number of ranks of the job: the recorded one, or the least that its process groups have where that is more."""
    steps: int
    coverage: float | None
    """Ranks x steps with evidence, divided by those expected; 0 to 1."""
    simulated: bool
    run_id: str | None = None
    name: str | None = None
    recorder_share: float | None = None
    """Largest share of the step time that the recorder took on any rank; known once a rank has ended."""
    recorder_budget: float | None = None
    """Share of the step time that the recorder was allowed."""
    gpu_hour: Cost | None = None
    """Price of a GPU-hour of a run, given or recorded with it; ``None``: unknown, or not a run."""
    world_size_is_least: bool = False
    """True if the job may have more ranks than ``world_size``, which only its process groups show."""
    is_one_job: bool = True
    """False if nothing says that traces are ranks of one job, or which: they are then numbered in the order of their names."""
    cycle: int | None = None
    """Number, from 1, of the cycle of the profiler's schedule that was analysed; ``None`` where there is one, and for runs."""
    cycles: int = 1
    """Number of cycles of the profiler's schedule in the traces."""
    unreadable: list[str] = []
    """Unreadable files and folders of a run, as paths inside it; their content is missing from the analysis."""
    warnings: list[str] = []
    """Sentences, one for each kind of data that was damaged or left out."""


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one rank. Times are microseconds over its whole window (traces), or summed over its profiled steps (runs).

    compute + exposed_communication + exposed_memcpy + idle == window. All of them are ``None`` when nothing was profiled; idle is
    also ``None`` when the trace is ``truncated``.
    """

    rank: int
    host: str | None
    gpu_uuid: str | None
    device_kind: DeviceKind | None
    attempt: int
    steps: int
    """Number of steps with evidence of any kind."""
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
    """Communication time without waiting. A matched collective counts with its shortest duration over the ranks. A send, a
    receive or an operation with a root counts with its duration minus the wait in it."""
    wait_us: float | None
    """Time in matched collectives beyond ``transfer_us``: waiting for later ranks."""
    blocked_us: float | None
    """Median blocked time per step from the always-on records."""
    own_us: float | None = None
    """Median own time (step time - blocked) per step from the always-on records."""
    wall_us: float | None = None
    """Median step time from the always-on records: the device's where it is known, else the wall time."""
    end_reason: str | None = None
    communication_parts: CommunicationPart | None = None
    """Communication in matched collectives, as transferring and waiting, hidden and exposed. ``None`` without any matched,
    and for runs."""
    class_us: dict[str, float] | None = None
    """Time in which any kernel or operator of a class ran, per class, over the same windows as ``compute_us``. Classes may
    overlap in time. This field and the next three are ``None`` unless known for all windows; for traces, they need details."""
    recompute_us: float | None = None
    """Time in which work ran that activation checkpointing recomputed."""
    idle_starved_us: float | None = None
    """Idle time in which no work had been launched: the host was late."""
    idle_queued_us: float | None = None
    """Idle time although work had been launched."""
    detail: RankDetail | None = None
    """Streams, classes of kernels, copies, launches …; ``None`` unless requested, and for runs, which keep no events."""
    clock: RankClock | None = None
    """Offset and drift of the rank's clock; ``None`` without a matched collective."""
    profiled_steps: int | None = None
    """Number of profiled steps over which the times are summed (runs); ``None`` for traces, and without any."""
    truncated: bool = False
    """True if the rank's trace lacks a part. Times then cover the rest of it (``None`` if there is none) and enter no mean."""
    data_quality: DataQuality | None = None
    """Result of checking the device events of the rank's trace; ``None`` for runs."""
    activity: StandingRank | None = None
    """What it is doing, if it stands still in a live run; ``None``: it goes on, has ended, or that is not known."""


class CollectiveMatching(msgspec.Struct, frozen=True, kw_only=True):
    """Result of matching the collectives across the ranks."""

    matched: int
    """Number of collective instances found on every rank of their group."""
    unmatched: int
    excluded: dict[str, int]
    """Number of instances left out on purpose, by reason (``p2p``, ``broadcast``, …): their waits cannot be attributed."""
    method: Literal["sequence", "order"] | None
    clock_residual_us: float | None
    """Median disagreement of the ends of matched collectives after clock correction; shorter lags are not reported."""
    unmatched_by: dict[str, int] = {}
    """Number of unmatched instances by reason (``rank_missing``, ``bytes_differ``, …); adds up to ``unmatched``."""
    by_op: list[CollectiveBandwidth] = []
    """Bandwidth per operation, process group and size; most transfer time first."""
    explained_share: float | None = None
    """Share of the ranks' communication time in traces that is in matched collectives. Waiting in the rest is not visible.
    ``None`` without communication, and for runs."""
    waits: list[DirectedWait] = []
    """Waits of one rank for another in sends, receives and operations with a root; longest first."""


class ImposedWait(msgspec.Struct, frozen=True, kw_only=True):
    """Time that other ranks waited for this one, summed over the victims."""

    rank: int
    imposed_us: float
    imposed_exposed_us: float
    """Part of the imposed wait that no compute hid; only this part costs time."""
    share: float | None
    """Share of all imposed wait; ``None`` when no rank waited."""


RunsIn = Literal["training_thread", "background_thread", "worker_process"]


class StalledLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line of code at which the named rank spends more of its time than the others: the evidence of sampled Python stacks."""

    file: str
    line: int
    function: str
    call: str | None
    """Function that the line calls, as written there; ``None``: it calls none or several, or its source was not readable."""
    innermost: str | None
    """Function of a library that the line was in most often; ``None``: none."""
    phase: Phase | None
    """Phase of the step; ``None``: unknown."""
    share: float
    """Share of the rank's samples that were at the line."""
    samples: int
    """Number of samples of the rank."""
    healthy_share: float
    """Share of the samples of the ranks that it was compared with that were at the line."""
    healthy_samples: int
    """Number of their samples."""
    runs_in: RunsIn = "training_thread"
    """Where the line runs. If that is not the training thread, then the shares are those of the line at which the training
    thread waits for it."""
    loads: bool = False
    """True if batches are loaded there."""


class UnknownKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel that may be communication, in a job whose traces have no kernel that is known as such."""

    name: str
    share: float
    """Share of the window that it takes; mean over the ranks."""
    least_us: float
    """Total time on the rank where it takes shortest."""
    most_us: float
    """Total time on the rank where it takes longest."""
    own_stream: bool
    """True if it never runs on the stream on which the rank computes."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the analysis: the rank at fault, the cause, the cost and the next actions."""

    kind: Kind
    rank: int | None = None
    ranks: list[int] = []
    hosts: list[str] = []
    """Hosts at fault as a whole: most ranks there are slow, together or one after the other. ``ranks`` has the slow ones."""
    pattern: Pattern | None = None
    cause: Cause | None = None
    explained_by: str | None = None
    phase: Phase | None = None
    stalls_at: StalledLine | None = None
    """Line at which the rank at fault stalls; ``None``: no samples of stacks, or no line stands out."""
    group: str | None = None
    stage: int | None = None
    steps: tuple[int, int] | None = None
    """First step that the verdict covers, and the step after the last."""
    steps_needed: int | None = None
    """Number of steps, about, of a run in which a suspected rank would be named if its excess stays the same. ``None``: no
    estimate."""
    evidence_source: Literal["steps", "windows", "traces", DurationSource] | None = None
    confidence: float | None = None
    """Confidence in the ranks, or in that there are none; 0 to 1."""
    cause_confidence: float | None = None
    """Confidence in the cause of a straggler: the share of bootstrap samples of the steps that give the same one. ``None``: not
    from step records, or a physical reason decided."""
    slowdown: float | None = None
    """Actual step time divided by the step time without the cause; 1.31 = the job takes 31 % longer."""
    saves: tuple[float, float] | None = None
    """Interval of what healing the named ranks or hosts saves, as shares of the typical step. ``None``: none are named, or the
    source gives no interval."""
    costs_at_most: float | None = None
    """Share of the typical step above which the data exclude the cost of any rank or host; for verdicts that name none."""
    judged_ranks: int | None = None
    """Number of ranks that were compared; ``None``: none, or unknown."""
    judged_steps: int | None = None
    """Number of steps in which they were compared."""
    gpu_hours_lost: float | None = None
    """GPU-hours lost to what the verdict names: what healing it saves in a typical step, in each step that was trained; for a
    verdict on rare steps, what these took beyond as many typical ones."""
    cost: Cost | None = None
    unknown_kernels: list[UnknownKernel] = []
    """Kernels that may be communication, likeliest first, where the ranks of a job run none that is known as such."""
    failure: str | None = None
    """How ranks ended before the end of training: a crash, or a rank that was killed first. The summary is about the time until
    then. ``None``: no rank did, or all were ended together."""
    summary: str
    """One sentence for a person."""
    next: list[str] = []
    """Commands or actions, most useful first."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that a finding rests on."""

    name: str
    value: float
    unit: str
    detail: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that costs time, with its evidence."""

    kind: Kind
    rank: int | None = None
    ranks: list[int] = []
    """Ranks at fault, ascending; ``rank`` is the worst of them. Empty where no rank is at fault, or the slowness rotates."""
    host: str | None = None
    """Host of ``rank``; for a finding about a whole host, that host."""
    whole_host: bool = False
    """True if the host is at fault as a whole: most of its ranks are slow, and ``ranks`` are all of its slow ones."""
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


class RareSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the few steps that took much longer than the typical one. The verdict is about the other, typical steps."""

    count: int
    """Number of rare steps."""
    of_steps: int
    """Number of steps among which they were found."""
    steps: list[int]
    """The costliest rare steps, ascending, at most 16."""
    typical_us: float
    """Time of the typical step."""
    longest_us: float
    """Time of the longest rare step."""
    share: float
    """Share of the run's time that they took beyond as many typical steps."""
    lost_us: float
    """Time that they took beyond as many typical steps."""
    rank: int | None
    """Rank that the others waited for in most of this time; ``None``: none, or several in turn."""
    moves: bool
    """True if the others waited for one rank in most of this time, and not always for the same."""
    host: str | None
    """Host of ``rank``."""
    cause: Cause | None
    """Cause of most of this time; ``None``: not known."""
    summary: str
    """One sentence for a person."""


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Complete result of ``rankscope analyze``."""

    schema: str = ANALYSIS_SCHEMA
    source: Source
    ranks: list[RankResult]
    collectives: CollectiveMatching
    imposed_wait: list[ImposedWait]
    """Most imposed first."""
    imposed_wait_source: Literal["steps", "windows", "traces", DurationSource] | None = None
    """Source of ``imposed_wait``; ``None`` when that is empty. Windows cover a few steps in detail, step records all steps."""
    ledger: Ledger | None = None
    """Wait attribution: delays by origin and victim, per process group; ``None`` if no source shows them."""
    verdict: Verdict
    findings: list[Finding]
    """Most costly first."""
    rare_steps: RareSteps | None = None
    """Steps that took much longer than the typical one; ``None`` without any that matter, and for traces."""
    pipeline: PipelineResult | None = None
    """Bubbles and stages; ``None`` without a pipeline, or where the records lack own time."""
    waterfall: Waterfall | None = None
    """Parts of the mean step's time; ``None`` with too few steps and no profiled window."""
    throughput: Throughput | None = None
    """Throughput of a run; ``None`` for traces and captures."""
    memory: Memory | None = None
    """Memory use; ``None`` if no record has a memory sample."""
    advice: list[Advice] = []
    """Actions to try, largest bound on the gain first, each with its evidence, that bound and how to check it."""
