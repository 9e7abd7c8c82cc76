"""All record types of a run directory.

Times are unix nanoseconds (``_unix_ns``) or durations in microseconds (``_us``). ``None`` means "not known"; it is never
written as zero. Readers ignore unknown fields; a newer major schema is an error (see ``reader``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

RUN_SCHEMA: Final = "rankscope.run/2"

Phase = Literal["data", "h2d", "forward", "backward", "optimizer", "between_steps"]
PHASES: Final[tuple[Phase, ...]] = ("data", "h2d", "forward", "backward", "optimizer", "between_steps")

DeviceKind = Literal["cuda", "cpu", "rocm", "xpu", "other"]
WindowBasis = Literal["file", "steps"]
ProcessState = Literal["stopped", "disk"]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
EndReason = Literal["exit", "interrupted", "crash", "killed", "disabled"]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: identity of the run, written once by the first rank that starts."""

    schema: str = RUN_SCHEMA
    run_id: str
    name: str
    start_unix_ns: int
    launcher: str | None = None
    """The command line that was launched, for people; ``None`` when attached from inside the script."""
    price_per_gpu_hour: float | None = None
    currency: str | None = None
    simulated: bool = False
    """True when the GPU readings of the run are simulated, as in a demonstration. Records of steps are always measured."""
    trackers: dict[str, str] = {}
    """Addresses of the run at experiment trackers, by their names."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Schedule of the micro-batches of a pipeline."""

    schedule: str
    """Name of the schedule's class: ``ScheduleGPipe``, ``Schedule1F1B``, ``ScheduleInterleaved1F1B`` …"""
    microbatches: int | None = None
    chunks: int = 1
    """Chunks of the model per rank; more than one in interleaved schedules."""


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``attempts/NNN/attempt.json``: one (elastic) start of the run."""

    attempt: int
    start_unix_ns: int
    world_size: int
    backend: str | None = None
    """Process-group backend as torch names it (``nccl``, ``gloo``, ``cpu:gloo,cuda:nccl``); ``None`` without a group."""
    versions: dict[str, str] = {}
    """Package name to version: python, torch, rankscope, …"""
    start_key: str | None = None
    """Key that distinguishes the job of an elastic agent from others in the same folder; ``None``: no such agent."""
    start_id: str | None = None
    """Id that the ranks of this start agreed on in the store of their process group; ``None``: no group, or an agent's store."""
    layout: dict[str, int] = {}
    """Parallel layout if known, dimension to its size, outermost first: ``{"dp": 4, "tp": 2}``."""
    pipeline: Pipeline | None = None
    """Pipeline schedule; ``None``: no pipeline, or not one of torch's own."""


STAGE_DIMENSIONS: Final = ("pp", "pipe", "pipeline", "stage")
"""Common names of the pipeline dimension in a parallel layout."""
SHARED_DIMENSIONS: Final = frozenset((*STAGE_DIMENSIONS, "tp", "tensor", "model", "mp", "cp", "context", "sp", "sequence"))
"""Dimensions of a parallel layout along which ranks share samples; along all others each rank has its own."""


class RankInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``rank.json``: identity of a rank. Rewritten once, when the rank ends."""

    rank: int
    world_size: int
    host: str
    boot_id: str | None = None
    """Id of the boot of the rank's kernel; containers of one kernel share it. ``None``: unknown."""
    pid: int
    attempt: int = 0
    local_rank: int | None = None
    device_kind: DeviceKind = "cpu"
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    gpu_uuids: list[str] = []
    """All GPUs of the process, if there are several: those of its parameters, ``gpu_uuid`` first, then all others on which it
    holds memory."""
    coordinates: dict[str, int] = {}
    """Position in the parallel layout if known: ``{"dp": 3, "tp": 0}``."""
    process_group: bool | None = None
    """Whether the default process group of torch.distributed existed at the rank's first step; ``None``: not recorded."""
    shared_parameters: bool = False
    """True if the model's parameters on the CPU are in memory that processes share, as Hogwild trains."""
    start_unix_ns: int
    end_unix_ns: int | None = None
    end_reason: EndReason | None = None
    """``None`` while running. ``crash``: by an exception or with a status other than 0. ``interrupted``: by Ctrl-C. ``killed``:
    ended abruptly (SIGKILL, OOM killer, node lost)."""
    dropped_records: int = 0
    """Number of records missing from the files: the ring was full, or they could not be read, encoded or written."""
    unwritten_steps: int = 0
    """Number of steps at the end that could not be written; they are also among ``dropped_records``."""
    unconfirmed_records: int = 0
    """Number of records that were written but whose ``fsync`` failed: up to this many more may be missing."""
    expired_records: dict[str, int] = {}
    """Stream to the number of its oldest records that retention removed."""
    missed_windows: int = 0
    """Number of profiler windows that were due and not recorded; the helper reports the reason for the first."""
    recorder_cost_us: float | None = None
    """Time that the recorder cost the training thread, windows included."""
    window_cost_us: float | None = None
    """Part of ``recorder_cost_us`` that the profiler windows cost."""
    windows: int = 0
    """Number of profiler windows recorded."""
    budget: float | None = None
    """Share of the step time that the recorder may cost, as configured; ``None``: not configured."""
    disabled_reason: str | None = None
    """Error for which the recorder switched itself off."""
    loader_workers: int | None = None
    """``num_workers`` of the torch ``DataLoader`` that was iterated last before the first step ended; 0: it has no worker
    processes. ``None``: there was none."""

    @property
    def clock_name(self) -> str:
        """Name that all ranks whose times are of one clock share: the boot of their kernel, or their host if that is unknown."""
        return self.boot_id or self.host


class RankActivity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``activity.json``: what a rank that stands still is doing. The file exists only while it stands still."""

    attempt: Natural
    rank: Natural
    step: Natural | None = None
    """The step that is going on; ``None``: not known."""
    phase: Phase
    section: str | None = None
    """Section of the script in which it is; ``checkpoint``: it writes a checkpoint."""
    waiting: bool | None = None
    """Whether its training thread waits for other ranks; ``None``: not known, as on a device, where the host waits elsewhere."""
    process: ProcessState | None = None
    """``stopped``: by a signal, such as SIGSTOP. ``disk``: its main thread is in an uninterruptible wait, typically for a disk or
    a network filesystem. ``None``: neither, or not known."""
    since_unix_ns: Natural
    """Time of the last event of its training thread."""
    updated_unix_ns: Natural
    """Time at which this was seen. It is refreshed every 30 s."""


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Microseconds per phase of one step; ``None`` where there is no signal for the phase."""

    data: float | None = None
    """Wait for the data loader's next batch."""
    h2d: float | None = None
    """Copy of the batch to the device, where it can be distinguished."""
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    between_steps: float | None = None
    """The rest of the step: logging, checkpoints, evaluation, anything outside the other phases."""

    def get(self, phase: Phase) -> float | None:
        """Return the time of ``phase`` in microseconds, or ``None``."""
        value: float | None = getattr(self, phase)
        return value


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of one rank, always on: a row of ``steps-*.npy`` (see ``step_columns``) and its ``StepEvent``, if there is one.

    The phases that are not ``None`` sum to ``wall_us``. Own time = ``wall_us`` - ``blocked_us``: the time that this rank needed
    itself. Own times are comparable between ranks; wall times are not, as collectives equalise them.
    """

    step: int
    start_unix_ns: int
    wall_us: float
    phases_us: PhaseTimes = PhaseTimes()
    blocked_us: PhaseTimes | None = None
    """Time inside each phase spent waiting for other ranks. ``None``: no signal, so own time is unknown."""
    cpu_us: float | None = None
    """CPU time of the training thread. It excludes the separate threads that run the backward pass for a device. This and the
    next three are read every 20 ms. Shorter steps share a reading: CPU time in proportion to own time, others to wall time."""
    run_queue_us: float | None = None
    """Time the training thread was runnable but not running (``/proc/thread-self/schedstat``): CPU contention."""
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    gc_us: float | None = None
    """Time of Python garbage collection inside the step."""
    samples: int | None = None
    tokens: int | None = None
    input_elements: int | None = None
    """Number of elements of all tensors in the step's batches: a measure of work that needs no knowledge of the model."""
    model_elements: int | None = None
    """The same of the tensors that the data parallel model was given to train on: batches may change after they were loaded."""
    flops: float | None = None
    """Number of floating-point operations of the step on this rank, where the script reports it."""
    device_us: PhaseTimes | None = None
    """Phases on the timeline of the device's main stream, between events recorded at their bounds. They sum to the step's time
    on the device. ``None``: no device, or its events were not read (yet)."""
    device_blocked_us: PhaseTimes | None = None
    """Time inside each phase of ``device_us`` that the stream waited for other ranks; ``None``: no signal."""
    sections_us: dict[str, float] = {}
    """Time of each section of the script; sections lie inside the phases and are not part of their sum."""
    allocated_bytes: int | None = None
    """Device memory held by tensors at the step's end; this field and the next three are set every Nth step only."""
    reserved_bytes: int | None = None
    """Device memory held by the allocator at the step's end."""
    peak_allocated_bytes: int | None = None
    """Highest ``allocated_bytes`` since the process began, or since the script reset it."""
    allocator_retries: int | None = None
    """Number of allocations so far that failed at first and made the allocator release its cache."""
    resident_bytes: int | None = None
    """Resident memory of the process, every Nth step only."""
    profiled: bool = False
    """True if the profiler was on during this step: its times include the profiler's cost."""
    tags: list[str] = []
    """Events of the step: ``checkpoint``, ``eval``, ``gc`` …"""
    metrics: dict[str, float] = {}
    """Numbers of the script's own, such as its loss."""

    @property
    def _on_device(self) -> bool:
        """True if the device's timeline is used for own and blocked time: its host runs ahead and waits at other places."""
        return self.device_us is not None and self.device_blocked_us is not None

    @property
    def step_us(self) -> float:
        """Time of the step: on the device where it is known, else ``wall_us``.

        A host that only launches work runs ahead, and waits for the device once in many steps, so ``wall_us`` says little of a
        single step there.
        """
        device_times = (
            () if self.device_us is None else [time for phase in PHASES if (time := self.device_us.get(phase)) is not None]
        )
        return sum(device_times) if device_times else self.wall_us

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
        return (self.step_us if self._on_device else self.wall_us) - blocked


class StepEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tags, sections and the script's metrics of a step (``events-*.jsonl``); only a step that has any has a line."""

    step: int
    end_unix_ns: int
    """End of the step."""
    tags: list[str] = []
    """As in ``StepRecord``."""
    sections_us: dict[str, float] = {}
    """As in ``StepRecord``."""
    metrics: dict[str, float] = {}
    """As in ``StepRecord``."""


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Partition of the time of one profiled step on one rank (``windows-*.jsonl``).

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
    """Number of profiler events that were reduced to this row."""
    truncated: bool = False
    """True if the trace lacks a part of this step."""
    class_us: dict[str, float] = {}
    """Class of kernels or CPU operators (``gemm``, ``communication``, ``other`` …) to the time in which any of them ran. Classes
    may overlap, so the times have no meaningful sum."""
    recompute_us: float | None = None
    """Time in which work ran that forward operators launched inside backward: activation checkpointing. ``None``: unknown, as in
    a trace of device activities only."""
    idle_starved_us: float | None = None
    """Idle time with no work launched: the host was late. This field and the next three sum to ``idle_us``. ``None``: the trace
    has no launching call, or no work runs on a device."""
    idle_launching_us: float | None = None
    """Idle time during a launching call."""
    idle_queued_us: float | None = None
    """Idle time although work had been launched."""
    idle_unknown_us: float | None = None
    """Idle time before work whose launching call is not in the trace."""
    looked_wrong: str | None = None
    """Anomaly that the rank saw in this step and for which it was to keep the window's raw trace: the step took clearly longer
    than its neighbours, or its profile is incomplete. ``None``: no anomaly, or the step was not checked."""


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective of one rank in a profiled step (``collectives-*.jsonl``)."""

    step: int
    group: str
    """Process-group name; the same on all ranks of the group."""
    group_ranks: list[int] | None = None
    group_size: int | None = None
    index: int
    """Index of the collective in (step, group) on this rank, from 0: used for matching without a sequence number."""
    sequence: int | None = None
    """Sequence number of the process group, where the trace has it."""
    op: str
    """``all_reduce``, ``all_gather_base``, ``reduce_scatter_base``, ``broadcast``, ``all_to_all``, ``send``, ``recv`` …"""
    dtype: str | None = None
    bytes: int | None = None
    enqueue_unix_ns: int
    """Time at which the calling thread enqueued the collective; for gloo the rank's arrival."""
    start_unix_ns: int
    end_unix_ns: int
    stream: int | None = None
    p2p: bool = False
    peer: int | None = None
    """Global rank at the other end of a send or receive, where the trace has it."""
    root: int | None = None
    """Global rank that sends (broadcast, scatter) or receives (reduce, gather) all data, where the trace has it."""
    compute_spans_us: list[tuple[float, float]] = []
    """Merged compute intervals inside [enqueue, end], as (start, end) in microseconds after ``enqueue_unix_ns``."""


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the costliest kernels (CUDA) or operators (CPU) of a profiled step (``kernels-*.jsonl``)."""

    step: int
    name: str
    kind: Literal["compute", "communication", "memcpy"]
    total_us: float
    """Sum of the durations of the kernel's calls; calls may overlap."""
    calls: int
    kernel_class: str | None = None
    """Class of a compute kernel by its name; ``other`` where no class matches."""


BatchSource = Literal["loader", "workers", "queue"]


class StackLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line of code at which samples of a stack were taken: that of the innermost frame outside of installed libraries."""

    file: str
    line: int
    function: str
    samples: int
    call: str | None = None
    """Function that the line calls, as written there (``time.sleep``); ``None``: none, several, or unknown."""
    innermost: str | None = None
    """Function of a library that the line was in most often; ``None``: none."""
    phase: Phase | None = None
    """Phase of nearly all of these samples; ``None``: unknown, or of several phases."""
    batches_from: BatchSource | None = None
    """Where the thread gets batches from in most of these samples. ``loader``: it runs code of a library that loads data;
    ``workers``: it waits in such a library for other processes or threads; ``queue``: it waits for another thread or process,
    as for an item of a queue or the result of a future, which need not be a batch."""


class LoaderSamples(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Samples of threads or processes beside the training thread that may load its batches: all that have one ``target``."""

    kind: Literal["thread", "process"]
    target: str
    """Function that they run, with its file: ``train.py:prefetch``."""
    samples: int
    loads: int = 0
    """Number of samples in a library that loads data, without those of a worker process that waits for requests."""
    gets: int = 0
    """Number of samples that wait for another thread or process, as for an item of a queue."""
    puts: int = 0
    """Number of samples that wait for room in a queue."""
    lines: list[StackLine] = []
    """Most frequent lines of the other samples."""


class StackSamples(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Samples of the Python stack of a rank's training thread, taken in about two seconds (``stacks-*.jsonl``)."""

    start_unix_ns: int
    end_unix_ns: int
    first_step: int | None = None
    last_step: int | None = None
    samples: int = 0
    lines: list[StackLine] = []
    """Most frequent lines; other lines have the rest of ``samples``."""
    loaders: list[LoaderSamples] = []
    """Other threads of the process, and its worker processes where the training thread waits for items or batches."""
    missing: str | None = None
    """Reason why no samples are taken from now on; such a row has none."""


class PlannedWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Profiled window announced to all ranks of an attempt (``attempts/NNN/plan-*.jsonl``)."""

    first: int
    """First profiled step."""
    steps: int
    reason: Literal["schedule", "capture"]
    request: str | None = None
    """Id of the request in ``control/`` that caused the window."""
    ranks: list[int] | None = None
    """Ranks that profile; ``None``: all."""
    keep_trace: bool = False
    """True if the raw traces are kept."""
    chosen_unix_ns: int


class HardwareSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sample of one GPU (``hosts/NAME/gpu-*.jsonl``), as published by the node's exporter; ``None``: not published."""

    unix_ns: int
    """Time at which the exporter answered."""
    gpu_uuid: str | None = None
    """UUID of the GPU. ``None``: the row is about the whole host and ``missing`` has the reason for absent values."""
    gpu_index: int | None = None
    parent_uuid: str | None = None
    """UUID of the GPU that a MIG device is a part of; values that the two share are in that GPU's row."""
    missing: str | None = None
    """Reason for absent values: the exporter was absent, or did not know this GPU (any more)."""
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
    """Active reasons for a lowered clock; an empty list: none is active."""
    xid_errors: int | None = None
    """Number of Xid errors so far."""
    xid_errors_of_programs: int | None = None
    """Number of the Xid errors whose codes mean that a program failed or ended: they are no sign of a fault of the GPU."""
    ecc_uncorrected_errors: int | None = None
    pcie_replays: int | None = None
    nvlink_errors: int | None = None
    pcie_link_width: int | None = None
    """Lanes currently in use."""
    pcie_link_generation: int | None = None
    """Current generation; idle GPUs use a lower one to save power."""
    nvlinks_down: int | None = None
