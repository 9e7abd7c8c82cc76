"""Table of advice: what to do about a verdict or a figure, each sentence once. To add a piece of advice, add a row.

The next actions of a verdict are those of the first row that matches it; see ``next_actions``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.analysis.verdict.advice_rows import Bound, Row, at_least, below, for_figures, for_rank, for_verdict

_EXPOSED: Final = "share.exposed_communication"
_MUCH_EXPOSED: Final = (at_least(_EXPOSED, 0.1), below("overlap_ratio", 0.5))
_FULL: Final = at_least("memory.peak_share", 0.9)
_ACCELERATED: Final = at_least("accelerated", 1)
_REDUCES: Final = at_least("collectives.all_reduce_share", 0.5)
_SHARDS: Final = at_least("collectives.sharding_share", 0.5)

ROTATING: Final = (
    "Look for what the ranks share, or what comes and goes on their hosts: storage, logging, scheduled jobs, neighbours"
)
"""Advice for a slowdown that moves between ranks: no rank or host is at fault by itself."""

SHOW: Final = "rankscope dashboard {run}"
"""Last action of all verdicts but those for which data is missing."""

RECORD: Final = "rankscope run -- torchrun ... train.py"

_RECORD_ALL: Final = "Record every step, with phases and CPU time of rank {rank}: {record}"

_LOAD_AHEAD: Final = (
    "Load ahead: raise the DataLoader's num_workers and prefetch_factor, keep persistent_workers on; store samples decoded and "
    "in large files; move transforms off the training thread"
)
_LAUNCH_LESS: Final = (
    "Keep the device busy: torch.compile, CUDA graphs, larger batches; no .item(), .cpu() or print of tensors in the loop"
)
_COLLECT: Final = (
    "Collect garbage when it suits: gc.freeze() after start-up, gc.disable(), and gc.collect() every N steps on all ranks at "
    "the same step"
)
_DUMP: Final = "Run py-spy dump on %s to see what the training thread waits in: logging, storage, locks, a data loader, sleeps"
_FEWER_THREADS: Final = (
    "Let the ranks of a host run no more threads than it has cores (OMP_NUM_THREADS + num_workers of each), and pin them to "
    "cores of their own"
)
_SEGMENTS: Final = "Let the allocator fragment less: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_LINKS_ALONE: Final = "Measure the links without the job, as with nccl-tests (all_reduce_perf -b 64M -e 1G -f 2) or iperf3"
_TRANSPORT: Final = (
    "See which transport the job took: NCCL_DEBUG=INFO names NVLS, P2P, SHM, NET/IB (with GPUDirect RDMA or not) or NET/Socket; "
    "GLOO_SOCKET_IFNAME is gloo's"
)
_WITHOUT: Final = "Start the job again without {without}; if the slowness stays behind, replace the host or its GPU"
_DRAIN: Final = 'Take the host out: scontrol update NodeName={node} State=DRAIN Reason="rankscope: rank {rank} slow, %s"'
_READINGS: Final = "Look at the readings of rank {rank}'s GPU on {host}: nvidia-smi -q -d %s"


def _for_hardware(reason: str, topics: str, *actions: str) -> Row:
    """Return the row for a rank that its hardware holds back. ``topics``: sections of ``nvidia-smi -q`` that show it."""
    more = (_READINGS % topics, _DRAIN % reason.replace("_", " "))
    row = for_rank("mend_hardware", "hardware", 0.05, *actions, *more)
    return msgspec.structs.replace(row, reason=reason)


TABLE: Final[tuple[Row, ...]] = (
    # Named ranks: physical reasons, then causes
    _for_hardware(
        "xid", "PAGE_RETIREMENT,ECC", "On {host}, find the errors in the kernel's log, and what each asks for: dmesg | grep Xid"
    ),
    _for_hardware(
        "ecc", "ECC,ROW_REMAPPER", "Reset the GPU of {who} once the job is off it; if the errors come again, replace the GPU"
    ),
    _for_hardware("thermal_throttle", "TEMPERATURE,PERFORMANCE", "Check airflow, fans and coolant of {host}"),
    _for_hardware("power_brake", "POWER,PERFORMANCE", "Check the power supplies of {host} and what its rack may draw"),
    _for_hardware(
        "power_cap", "POWER", "Compare the power limit of rank {rank}'s GPU with the others', and whether the room allows more"
    ),
    _for_hardware(
        "clock", "CLOCK,PERFORMANCE", "If somebody set the clocks of {host}'s GPUs, reset them: nvidia-smi -rgc; nvidia-smi -rac"
    ),
    _for_hardware(
        "link",
        "PERFORMANCE",
        "Compare the PCIe links of {host}: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
        "Find NVLinks that are down or have errors on {host}: nvidia-smi nvlink -s; nvidia-smi nvlink -e",
    ),
    for_rank(
        "memory_of_rank",
        "memory_pressure",
        0.05,
        "Use less memory on {who}: a smaller batch, activation checkpointing, or what else lives on its GPU (nvidia-smi)",
        _SEGMENTS,
    ),
    for_rank(
        "data_loading_of_rank",
        "input",
        0.02,
        "Time the dataset of {who} alone, and compare its storage, its CPU load and the size of its shard with the others'",
        _LOAD_AHEAD,
    ),
    for_rank(
        "cpus_of_rank",
        "cpu_contention",
        0.05,
        "Find what else runs beside {who} (top, systemd-cgtop), and give it CPUs of its own",
        _FEWER_THREADS,
    ),
    for_rank(
        "compare_devices",
        "compute",
        0.05,
        "Compare clocks, temperature and power of the device of {who} with its neighbours': rankscope exporter",
        _WITHOUT,
    ),
    for_rank(
        "balance_work",
        "imbalance",
        0.05,
        "Balance the work: bucket samples by length or cap the tokens of a batch, so that {who} and the others get the same",
    ),
    for_rank("gc_policy_of_rank", "gc", 0.02, _COLLECT),
    for_rank(
        "checkpoints",
        "checkpoint",
        0.02,
        "Write checkpoints asynchronously (torch.distributed.checkpoint.async_save), or shard them over all ranks",
    ),
    for_rank(
        "evaluation",
        "evaluation",
        0.02,
        "Evaluate less often, share the evaluation equally among all ranks, or run it in a job of its own",
    ),
    for_rank(
        "stalls",
        "host",
        0.05,
        _DUMP % "{who}{unseen}",
        "Look at {stalls_at} in the code: what does it wait for on {who} and not on the others (storage, locks, a log, a sleep)?",
        _RECORD_ALL,
    ),
    # ``{run:.0}`` shows nothing: there is a page for runs only.
    for_verdict("straggler", "Look at {who} on the page{run:.0}", _RECORD_ALL, _WITHOUT),
    # Input
    for_figures("data_loading", (at_least("share.input", 0.05),), "share of input", _LOAD_AHEAD, kind="input_bound"),
    for_figures(
        "copies",
        (at_least("share.copies", 0.03), _ACCELERATED),
        "share of copies",
        "Hide copies: pin_memory=True in the DataLoader, .to(device, non_blocking=True), and copy the next batch on a stream of "
        "its own while this one is computed",
    ),
    # Compute
    for_figures(
        "mixed_precision",
        (at_least("share.compute", 0.3), at_least("kernels.float32_share", 0.3), _ACCELERATED),
        "share of compute",
        "Compute in 16 bits: torch.autocast with bfloat16 (float16 and torch.amp.GradScaler on GPUs without it), or mixed "
        "precision of FSDP; where 32 bits must stay, allow TF32 (torch.set_float32_matmul_precision)",
    ),
    for_figures(
        "faster_kernels",
        (at_least("share.compute", 0.5), below("mfu", 0.3), below("kernels.float32_share", 0.3)),
        "share of compute",
        "Speed up the kernels: torch.compile, fused attention and optimizers, sizes that are multiples of 64, lower precision",
        kind="compute_bound",
    ),
    # Communication
    for_figures(
        "overlap",
        (*_MUCH_EXPOSED, _REDUCES),
        "share of exposed communication",
        "Let gradients be reduced while backward goes on: a smaller bucket_cap_mb where they all fit into a few buckets; nothing "
        "in backward that waits for the device; if DDP has find_unused_parameters=True, static_graph=True instead where the "
        "graph is the same in all steps",
    ),
    for_figures(
        "prefetch_shards",
        (*_MUCH_EXPOSED, _SHARDS),
        "share of exposed communication",
        "Gather more layers ahead (set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of FSDP2, "
        "forward_prefetch=True of FSDP1), and wrap layers of like size each",
    ),
    for_figures(
        "bucket_size",
        (at_least(_EXPOSED, 0.05), below("collectives.median_bytes", 1 << 20), at_least("collectives.messages", 4)),
        "share of exposed communication",
        "Send fewer, larger messages: raise bucket_cap_mb of DDP, or wrap larger modules in FSDP",
    ),
    for_figures(
        "gradient_accumulation",
        (at_least(_EXPOSED, 0.15), _REDUCES),
        "exposed communication per sample",
        "Reduce gradients every second batch only: no_sync() and twice the accumulation steps (the batch per optimizer step "
        "doubles)",
        gain=0.5,
    ),
    for_figures(
        "keep_parameters",
        (at_least(_EXPOSED, 0.1), _SHARDS, below("memory.peak_share", 0.6)),
        "share of exposed communication",
        "There is room for whole parameters: reshard_after_forward=False (FSDP2) or SHARD_GRAD_OP (FSDP1), and they are not "
        "gathered again for backward, one of three transfers; or let shards stay within a host (HSDP)",
    ),
    for_figures(
        "interconnect",
        (at_least(_EXPOSED, 0.2), at_least("hosts", 2)),
        "share of exposed communication",
        _LINKS_ALONE,
        _TRANSPORT,
        "Keep the ranks of the busiest groups on one host or switch",
    ),
    for_verdict(
        "communication_bound",
        _LINKS_ALONE,
        "If they are slow there, too, look at the hardware: nvidia-smi nvlink --status, nvidia-smi topo -m, ibstat, ethtool",
        _TRANSPORT,
        cause="communication",
        reason="link",
    ),
    for_verdict(
        "communication_bound",
        "Hide more of it behind backward, or have less of it: gradient accumulation, communication in lower precision",
        _LINKS_ALONE,
    ),
    # Batch and memory
    # Activations double with the batch, and may be all of the memory in use.
    for_figures(
        "batch_size",
        (at_least("share.overhead", 0.15), below("memory.peak_share", 0.45)),
        "time per sample",
        "There is memory left: twice the batch per rank halves what communication and the host cost per sample (and asks for "
        "another learning rate)",
        gain=0.5,
    ),
    for_figures(
        "activation_checkpointing",
        (_FULL, at_least("share.all_compute", 0.1)),
        "peak of allocated memory",
        "Memory is nearly full: checkpoint the activations of the largest blocks (torch.utils.checkpoint) to make room, such as "
        "for larger batches; forward is computed once more",
        gain=None,
        cost=Bound("share.all_compute", 1 / 3),
    ),
    for_figures(
        "shard",
        (_FULL, _REDUCES, below("collectives.sharding_share", 0.1)),
        "peak of allocated memory",
        "Every rank holds the whole model and memory is nearly full: shard optimizer state and parameters (FSDP2, or "
        "ZeroRedundancyOptimizer)",
        gain=None,
    ),
    for_figures(
        "allocator",
        (at_least("memory.retries", 1),),
        "allocator retries",
        "The allocator ran out and gave back its cache, which stops the device: lower the peak",
        _SEGMENTS,
        gain=None,
    ),
    for_figures(
        "fragmentation",
        (at_least("memory.fragmentation", 0.2), at_least("memory.peak_share", 0.7)),
        "reserved beyond the peak of allocated memory",
        _SEGMENTS,
        "Pad batches to few different lengths",
        gain=None,
    ),
    for_figures(
        "device_leak",
        (at_least("memory.device_leak", 0),),
        "growth of allocated memory",
        "Tensors pile up on the device: keep numbers, not tensors with their graph (loss.item() or .detach()), in lists and "
        "metrics; torch.cuda.memory._record_memory_history shows who holds them",
        gain=None,
    ),
    for_figures(
        "host_leak",
        (at_least("memory.host_leak", 0),),
        "growth of resident memory",
        "The process grows on the host: look for lists that are only appended to, and Python objects that DataLoader workers "
        "copy on write; tracemalloc shows where they were made",
        gain=None,
    ),
    # Pipeline
    for_figures(
        "micro_batches",
        (at_least("pipeline.schedule", 0.05),),
        "pipeline bubble",
        "Use twice the micro-batches per step, or gradient accumulation: the schedule's bubble nearly halves",
        "Try an interleaved or zero-bubble schedule",
        gain=0.5,
        kind="pipeline_bubble",
        reason="schedule",
    ),
    for_figures(
        "stages",
        (at_least("pipeline.imbalance", 0.03),),
        "pipeline bubble",
        "Move layers from the slowest stage to the others; embeddings and the loss count, too",
        kind="pipeline_bubble",
        reason="stage_imbalance",
    ),
    for_verdict(
        "pipeline_bubble",
        "See what the ranks wait in: rankscope capture {run} --steps 3",
        "Check the links between the stages' hosts; smaller activations (lower precision) travel faster",
    ),
    # Host
    for_figures(
        "between_steps",
        (at_least("share.between_steps", 0.1),),
        "own time between steps",
        _DUMP % "a few ranks",
        "Log, evaluate and checkpoint less often, or on another thread than the training loop's",
        kind="host_bound",
        reason="between_steps",
    ),
    for_figures(
        "gc_policy", (at_least("share.gc", 0.02),), "garbage collection per step", _COLLECT, kind="host_bound", cause="gc"
    ),
    for_figures(
        "cpus",
        (at_least("share.run_queue", 0.05),),
        "waiting for a CPU",
        _FEWER_THREADS,
        "See what else runs on the hosts: top, systemd-cgtop",
        kind="host_bound",
        reason="cpu_contention",
    ),
    for_figures(
        "see_why_idle",
        (at_least("share.idle_unexplained", 0.1), _ACCELERATED),
        "idle time",
        "Find out whether the device waits for input or for its host: trace CPU activities, too",
        "Or record step by step: {record}",
        f"For input: {_LOAD_AHEAD}",
        f"For the host: {_LAUNCH_LESS}",
        kind="host_bound",
        reason="idle_unexplained",
    ),
    for_figures(
        "stalls_everywhere",
        (at_least("share.stalled", 0.1),),
        "share of host",
        _DUMP % "a few ranks",
        kind="host_bound",
        cause="host",
    ),
    for_figures("launch_less", (at_least("share.host", 0.15), _ACCELERATED), "share of host", _LAUNCH_LESS, kind="host_bound"),
    # Too little data
    for_verdict(
        "insufficient_data",
        "While it trains, profile more steps: rankscope capture {run} --steps {steps}",
        reason="short_capture",
    ),
    for_verdict(
        "insufficient_data",
        "If the job hangs, have its ranks write which collective they wait in: rankscope capture {run} --flight-recorder",
        "If it has vanished with its nodes, start it again: the same command is the run's next attempt",
        reason="silent",
    ),
    for_verdict(
        "insufficient_data",
        "The job failed after {recorded}: mend the error, then start it again with the same command",
        reason="failed",
    ),
    for_verdict("insufficient_data", "Let it train on{until}, then: rankscope analyze {run}", reason="few_steps"),
    for_verdict(
        "insufficient_data",
        f"The job has ended after {{recorded}}: record a run of {{enough}}: {RECORD}",
        reason="few_steps_over",
    ),
    for_verdict(
        "insufficient_data",
        "See on the stderr of the other ranks why they are not recorded: all must be able to write to {run}",
        reason="few_ranks",
    ),
    for_verdict(
        "insufficient_data",
        "While it trains, profile steps, which tell working from waiting: rankscope capture {run} --steps {steps}",
        reason="few_windows",
    ),
    for_verdict(
        "insufficient_data",
        "The job has ended after {recorded}: record a run with more profiled steps: rankscope run --window-every 50 -- ...",
        reason="few_windows_over",
    ),
    for_verdict("insufficient_data", "See what each stage takes: rankscope dashboard {run}", reason="one_rank_per_stage"),
    for_verdict(
        "insufficient_data",
        "Trace again, and let every rank finish its file before it ends (export after prof.stop()); or record a run: {record}",
        reason="torn_trace",
    ),
    for_verdict("insufficient_data", "Analyse the traces of all ranks together, or record a run: {record}"),
)
