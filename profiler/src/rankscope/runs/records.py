"""Every record of a run directory, one place.

Times are unix nanoseconds (``_unix_ns``) or durations in microseconds (``_us``). ``None`` means "not known"; it is never
written as zero. Readers ignore unknown fields; a newer major schema is an error (see ``reader``).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

RUN_SCHEMA: Final = "rankscope.run/2"

Phase = Literal["data", "h2d", "forward", "backward", "optimizer", "between_steps"]
PHASES: Final[tuple[Phase, ...]] = ("data", "h2d", "forward", "backward", "optimizer", "between_steps")

DeviceKind = Literal["cuda", "cpu", "rocm", "xpu", "other"]
WindowBasis = Literal["file", "steps"]
EndReason = Literal["exit", "crash", "killed", "disabled"]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: identity of the run, written once by whichever rank comes first."""

    schema: str = RUN_SCHEMA
    run_id: str
    name: str
    start_unix_ns: int
    launcher: str | None = None
    """The command line that was launched, for people; ``None`` when attached from inside the script."""
    price_per_gpu_hour: float | None = None
    currency: str | None = None
    simulated: bool = False
    """True when the GPU readings that belong to the run are simulated, as in a demonstration without a GPU. Shown wherever the
    run is shown. What ranks record about their steps is always measured."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the micro-batches of a pipeline are scheduled."""

    schedule: str
    """Name of the schedule's class: ``ScheduleGPipe``, ``Schedule1F1B``, ``ScheduleInterleaved1F1B`` …"""
    microbatches: int | None = None
    chunks: int = 1
    """Chunks of the model per rank; more than one in interleaved schedules."""


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``attempts/NNN/attempt.json``: one per (elastic) start."""

    attempt: int
    start_unix_ns: int
    world_size: int
    backend: str | None = None
    """Process-group backend as torch names it (``nccl``, ``gloo``, ``cpu:gloo,cuda:nccl``); ``None`` without a group."""
    versions: dict[str, str] = {}
    """Package name to version: python, torch, rankscope, …"""
    start_key: str | None = None
    """What tells the job of an elastic agent from others in the same folder; ``None``: there is no such agent."""
    layout: dict[str, int] = {}
    """Parallel layout when known, name of a dimension to its size, outermost first: ``{"dp": 4, "tp": 2}``."""
    pipeline: Pipeline | None = None
    """``None``: there is none, or it is not one of torch's own."""


class RankInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``rank.json``: who this rank is. Rewritten once, when it ends."""

    rank: int
    world_size: int
    host: str
    pid: int
    attempt: int = 0
    local_rank: int | None = None
    device_kind: DeviceKind = "cpu"
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    coordinates: dict[str, int] = {}
    """Place in the parallel layout when known: ``{"dp": 3, "tp": 0}``."""
    start_unix_ns: int
    end_unix_ns: int | None = None
    end_reason: EndReason | None = None
    """``None`` while running. ``killed``: the process vanished without saying goodbye (SIGKILL, OOM killer, node lost)."""
    dropped_records: int = 0
    """Records that are missing from the files: the ring was full, the folder could not be written for too long, or they could not
    be read, encoded or written for another reason."""
    unconfirmed_records: int = 0
    """Records that the filesystem took, and then failed when it was to make sure of them: up to so many more may be missing."""
    expired_records: dict[str, int] = {}
    """Stream to the number of its oldest records that retention has removed."""
    missed_windows: int = 0
    """Profiler windows that were due and left out; the helper says why the first was."""
    recorder_cost_us: float | None = None
    """What the recorder itself cost the training thread, windows included."""
    window_cost_us: float | None = None
    """The part of it that the profiler windows cost."""
    windows: int = 0
    """Profiler windows recorded."""
    budget: float | None = None
    """Share of the step time that the recorder may cost, as told; ``None``: nobody said."""
    disabled_reason: str | None = None
    """Set when the recorder switched itself off: what went wrong."""


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Microseconds per phase of one step; ``None`` where there is no signal for the phase."""

    data: float | None = None
    """Waiting for the data loader's next batch."""
    h2d: float | None = None
    """Copying the batch to the device, where it can be told apart."""
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    between_steps: float | None = None
    """The rest of the step: logging, checkpoints, evaluation, anything outside the other phases."""

    def get(self, phase: Phase) -> float | None:
        """The time of ``phase`` in microseconds, or ``None``."""
        value: float | None = getattr(self, phase)
        return value


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of one rank, always on: a row of ``steps-*.npy`` (see ``step_columns``) and its ``StepEvent``, if there is one.

    The phases that are not ``None`` sum to ``wall_us``. Own time = ``wall_us`` - ``blocked_us``: what this rank needed itself,
    comparable between ranks, while walls are equalised by the collectives.
    """

    step: int
    start_unix_ns: int
    wall_us: float
    phases_us: PhaseTimes = PhaseTimes()
    blocked_us: PhaseTimes | None = None
    """Time inside each phase spent waiting for other ranks. ``None``: no signal at all, own time is unknown."""
    cpu_us: float | None = None
    """CPU time of the training thread. Backward on a device runs on threads of its own, which are not in it."""
    run_queue_us: float | None = None
    """Time the training thread was runnable but not running (``/proc/thread-self/schedstat``): CPU contention. This and the
    context switches are read every 20 ms; shorter steps share a reading by the time that the thread was off its processor."""
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    gc_us: float | None = None
    """Python garbage collection inside the step."""
    samples: int | None = None
    tokens: int | None = None
    input_elements: int | None = None
    """Elements of all tensors in the step's batches: the measure of work that needs no knowledge of the model."""
    flops: float | None = None
    """Floating-point operations of the step on this rank, where the script says."""
    device_us: PhaseTimes | None = None
    """The same phases on the time line of the device's main stream, between events recorded at their bounds. They sum to the
    step as the device saw it. ``None``: no device, or its events were not read (yet)."""
    device_blocked_us: PhaseTimes | None = None
    """Time inside each of ``device_us`` that the stream waited for other ranks; ``None``: no signal."""
    sections_us: dict[str, float] = {}
    """The script's own sections; they lie inside the phases and are not part of their sum."""
    allocated_bytes: int | None = None
    """Device memory held by tensors at the step's end; this and the next three every Nth step only."""
    reserved_bytes: int | None = None
    """Device memory held by the allocator at the step's end."""
    peak_allocated_bytes: int | None = None
    """Highest ``allocated_bytes`` since the process began, or since the script reset it."""
    allocator_retries: int | None = None
    """Allocations so far that failed at first and made the allocator give back its cache."""
    resident_bytes: int | None = None
    """Resident memory of the process, every Nth step only."""
    profiled: bool = False
    """The profiler was on during this step: its times include the profiler's cost."""
    tags: list[str] = []
    """What happened in the step: ``checkpoint``, ``eval``, ``gc`` …"""

    @property
    def _on_device(self) -> bool:
        """Whether the device's time line is the one to judge by: the host of a device runs ahead and waits somewhere else."""
        return self.device_us is not None and self.device_blocked_us is not None

    @property
    def blocked_total_us(self) -> float | None:
        """Blocked time over all phases, on the device where its times are known; ``None`` when there is no signal."""
        blocked = self.device_blocked_us if self._on_device else self.blocked_us
        return None if blocked is None else sum(blocked.get(phase) or 0.0 for phase in PHASES)

    @property
    def own_us(self) -> float | None:
        """Time of the step minus blocked time, on the device where its times are known; ``None`` when there is no signal."""
        blocked = self.blocked_total_us
        if blocked is None:
            return None
        if self.device_us is not None and self._on_device:
            return sum(self.device_us.get(phase) or 0.0 for phase in PHASES) - blocked
        return self.wall_us - blocked

    def own_in_us(self, phase: Phase) -> float | None:
        """Time of ``phase`` minus blocked time in it, as ``own_us``; ``None`` without a signal or the phase."""
        times, blocked = (self.device_us, self.device_blocked_us) if self._on_device else (self.phases_us, self.blocked_us)
        time = None if times is None else times.get(phase)
        if time is None or blocked is None:
            return None
        return time - (blocked.get(phase) or 0.0)


class StepEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is rare in a step or of variable length (``events-*.jsonl``): one line for a step that has any of it."""

    step: int
    end_unix_ns: int
    """When the step ended."""
    tags: list[str] = []
    """As in ``StepRecord``."""
    sections_us: dict[str, float] = {}
    """As in ``StepRecord``."""


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The partition of one profiled step on one rank (``windows-*.jsonl``).

    compute + exposed_communication + exposed_memcpy + idle == window.
    """

    step: int
    start_unix_ns: int
    device_kind: DeviceKind
    window_basis: WindowBasis = "steps"
    window_us: float
    compute_us: float
    communication_us: float
    overlap_us: float
    exposed_communication_us: float
    memcpy_us: float
    exposed_memcpy_us: float
    idle_us: float
    events: int
    """Profiler events that were reduced to this row."""
    truncated: bool = False
    """The trace lacks a part of this step."""
    class_us: dict[str, float] = {}
    """Class of kernels or CPU operators (``gemm``, ``communication``, ``other`` …) to the time in which any of them ran. Classes
    may run side by side, so the times need not add up to anything."""
    recompute_us: float | None = None
    """Time in which anything ran that forward operators inside backward asked for: activation checkpointing. ``None``: cannot be
    known, as in a trace of device activities alone."""
    idle_starved_us: float | None = None
    """Idle as nothing had been launched: the host came too late. This and the next three add up to ``idle_us``; ``None``: no
    launching call is in the trace, or nothing runs on a device."""
    idle_launching_us: float | None = None
    """Idle while a call was launching."""
    idle_queued_us: float | None = None
    """Idle though work had been launched."""
    idle_unknown_us: float | None = None
    """Idle before work whose launching call is not in the trace."""
    looked_wrong: str | None = None
    """What looked wrong in this step to its own rank, so that the window's raw trace was to be kept: it took clearly longer than
    the steps around it, or its profile is not complete. ``None``: nothing did, or it was not looked at."""


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective of one rank in a profiled step (``collectives-*.jsonl``)."""

    step: int
    group: str
    """Process-group name; the same on all its ranks."""
    group_ranks: list[int] | None = None
    group_size: int | None = None
    index: int
    """Own count in (step, group), from 0: what matching uses when there is no sequence number."""
    sequence: int | None = None
    """The process group's own sequence number where the trace has it."""
    op: str
    """``all_reduce``, ``all_gather_base``, ``reduce_scatter_base``, ``broadcast``, ``all_to_all``, ``send``, ``recv`` …"""
    dtype: str | None = None
    bytes: int | None = None
    enqueue_unix_ns: int
    """When the calling thread asked for it: the rank's arrival for gloo."""
    start_unix_ns: int
    end_unix_ns: int
    stream: int | None = None
    p2p: bool = False
    peer: int | None = None
    """Rank at the other end of a send or receive, in the world's numbering, where the trace says."""
    root: int | None = None
    """Rank that has (broadcast, scatter) or gets (reduce, gather) everything, in the world's numbering, where the trace says."""
    compute_spans_us: list[tuple[float, float]] = []
    """Merged compute intervals inside [enqueue, end], as (start, end) in microseconds after ``enqueue_unix_ns``."""


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the costliest kernels (CUDA) or operators (CPU) of a profiled step (``kernels-*.jsonl``)."""

    step: int
    name: str
    kind: Literal["compute", "communication", "memcpy"]
    total_us: float
    """Sum of the durations of its calls; calls may overlap."""
    calls: int
    kernel_class: str | None = None
    """Class by its name, for compute; ``other`` where no class knows it."""


class PlannedWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A profiled window announced to all ranks of an attempt (``attempts/NNN/plan-*.jsonl``)."""

    first: int
    """First profiled step."""
    steps: int
    reason: Literal["schedule", "capture"]
    request: str | None = None
    """The request in ``control/`` that asked for it."""
    ranks: list[int] | None = None
    """The ranks that profile; ``None``: all."""
    keep_trace: bool = False
    """Whether the raw traces are kept."""
    chosen_unix_ns: int


class HardwareSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment (``hosts/NAME/gpu-*.jsonl``), as the node's exporter published it; ``None`` is what it did not."""

    unix_ns: int
    """When the exporter answered."""
    gpu_uuid: str | None = None
    """``None``: a row about the whole host, which is why something is missing."""
    gpu_index: int | None = None
    parent_uuid: str | None = None
    """Of a MIG device: the GPU that it is a part of, whose row has what the two share."""
    missing: str | None = None
    """Why there are no values: the exporter was absent, or did not know this GPU (any more)."""
    simulated: bool = False
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    """Degrees left until the GPU slows down because of heat."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    throttle_reasons: list[str] | None = None
    """Reasons for a lowered clock that were active; an empty list: none was."""
    xid_errors: int | None = None
    """Xid errors so far."""
    xid_errors_of_programs: int | None = None
    """Of these, those with codes that say that a program went wrong, or that it ended: of the GPU itself they say nothing."""
    ecc_uncorrected_errors: int | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    pcie_link_width: int | None = None
    """Lanes in use now."""
    pcie_link_generation: int | None = None
    """Now; idle GPUs fall back to save power."""
    nvlinks_down: int | None = None


RECORD_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    "run": RunInfo,
    "attempt": AttemptInfo,
    "rank": RankInfo,
    "steps": StepRecord,
    "events": StepEvent,
    "windows": StepBreakdown,
    "collectives": CollectiveRecord,
    "kernels": KernelRecord,
    "plan": PlannedWindow,
    "gpu": HardwareSample,
}
"""Record name to type; ``rankscope schema NAME`` prints the JSON Schema of each."""
