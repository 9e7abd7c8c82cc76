"""Table of advice: what to do about a verdict or a figure, each sentence once. To add a piece of advice, add a row.

The next actions of a verdict are those of the first row that matches it; see ``next_actions``.
"""

from __future__ import annotations

from typing import Final

from rankscope.analysis.inference.reasons.remedy_table import OF_CAUSES, OF_REASONS
from rankscope.analysis.remedies import (
    COLLECT,
    DUMP,
    EVALUATE_LESS,
    FEWER_THREADS,
    LAUNCH_LESS,
    LINKS_ALONE,
    LOAD_AHEAD,
    OUT_OF_SERVICE,
    RECORD_ALL,
    SAVE_ASIDE,
    SEGMENTS,
    SERVED,
    SHARED,
    TRANSPORT,
    WITHOUT_HOST,
)
from rankscope.analysis.verdict.advice_rows import (
    RECORD,
    AdviceRow,
    FigureBound,
    at_least,
    below,
    for_figures,
    for_ranks,
    for_verdict,
)

_EXPOSED: Final = "share.exposed_communication"
_MUCH_EXPOSED: Final = (at_least(_EXPOSED, 0.1), below("overlap_ratio", 0.5))
_RETRIES: Final = at_least("memory.retries", 1)
# A full device is no problem by itself: only allocations that failed show that memory is short.
_FULL: Final = (_RETRIES, at_least("memory.peak_share", 0.9))
_ACCELERATED: Final = at_least("accelerated", 1)
_REPLICATED: Final = below("collectives.sharding_share", 0.1)
# Without shards, gradients that are reduced are DDP's; with shards, they are those of hybrid sharding.
_DDP: Final = (at_least("exposed.gradients", 0.5), _REPLICATED)
_SHARDS: Final = at_least("exposed.shards", 0.5)
_SMALL: Final = (below("collectives.median_bytes", 1 << 20), at_least("collectives.messages", 4))

TABLE: Final[tuple[AdviceRow, ...]] = (
    # Ranks and hosts that make the others wait: reasons first, then causes
    *(for_ranks(remedy, reason=reason) for reason, remedies in OF_REASONS.items() for remedy in remedies),
    *(for_ranks(remedy, cause=cause) for cause, remedies in OF_CAUSES.items() for remedy in remedies),
    for_verdict("straggler", SERVED, SHARED, WITHOUT_HOST, OUT_OF_SERVICE, whole_host=True),
    # ``{run:.0}`` shows nothing: there is a page for runs only.
    for_verdict("straggler", "Look at {ranks} on the page{run:.0}", RECORD_ALL),
    # Input
    for_figures("data_loading", (at_least("share.input", 0.05),), "share of input", LOAD_AHEAD, kind="input_bound"),
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
    ),
    for_verdict(
        "compute_bound",
        "Compute limits the step, as in a well-tuned job: compare its MFU with what this model reaches on this device elsewhere",
        "If it is lower, look at the costliest kernels: rankscope analyze TRACES --detail",
    ),
    # Communication
    for_figures(
        "overlap",
        (*_MUCH_EXPOSED, *_DDP),
        "share of exposed communication",
        "Reduce gradients during backward: use a smaller bucket_cap_mb if they all fit into a few buckets; avoid waiting for the "
        "device in backward; replace DDP's find_unused_parameters=True with static_graph=True if the graph is the same in all "
        "steps",
        kind="communication_bound",
        reason="gradients",
    ),
    for_figures(
        "prefetch_shards",
        (*_MUCH_EXPOSED, _SHARDS),
        "share of exposed communication",
        "Gather more layers ahead (set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of FSDP2, "
        "forward_prefetch=True of FSDP1), and wrap layers of like size each",
        kind="communication_bound",
        reason="shards",
    ),
    for_figures(
        "bucket_size",
        (at_least(_EXPOSED, 0.05), *_DDP, *_SMALL),
        "share of exposed communication",
        "Reduce gradients in fewer, larger buckets: raise bucket_cap_mb of DDP",
    ),
    for_figures(
        "wrap_larger",
        (at_least(_EXPOSED, 0.05), _SHARDS, *_SMALL),
        "share of exposed communication",
        "Gather shards in fewer, larger messages: apply FSDP to larger modules",
    ),
    for_figures(
        "gradient_accumulation",
        (at_least(_EXPOSED, 0.15), *_DDP),
        "exposed communication per sample",
        "If the batch per optimizer step may double, reduce gradients every second batch only: no_sync() and twice the "
        "accumulation steps",
        gain=0.5,
    ),
    for_figures(
        "tensor_parallel",
        (at_least(_EXPOSED, 0.1), at_least("exposed.activations", 0.5)),
        "share of exposed communication",
        "Compute waits for activations of other ranks: sequence parallelism, async tensor parallelism "
        "(torch._inductor.config._micro_pipeline_tp), or a smaller tensor-parallel degree, inside a host",
        kind="communication_bound",
        reason="activations",
    ),
    for_figures(
        "experts",
        (at_least(_EXPOSED, 0.1), at_least("exposed.tokens", 0.5)),
        "share of exposed communication",
        "Shorten the all-to-all of experts: place experts that exchange most on one host, lower the capacity factor, or compute "
        "one half of the batch while the other is dispatched",
        kind="communication_bound",
        reason="tokens",
    ),
    for_figures(
        "stage_transfers",
        (at_least(_EXPOSED, 0.1), at_least("exposed.stages", 0.5)),
        "share of exposed communication",
        "Send between pipeline stages while they compute: more micro-batches, or an interleaved schedule",
        kind="communication_bound",
        reason="stages",
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
        LINKS_ALONE,
        TRANSPORT,
        "Keep the ranks of the busiest groups on one host or switch",
    ),
    for_verdict(
        "communication_bound",
        LINKS_ALONE,
        "If they are slow there, too, look at the hardware: nvidia-smi nvlink --status, nvidia-smi topo -m, ibstat, ethtool",
        TRANSPORT,
        cause="communication",
        reason="link",
    ),
    for_verdict(
        "communication_bound", "See which operations no compute hides, by process group, on the page{run:.0}", LINKS_ALONE
    ),
    # Batch and memory
    # Activations double with the batch, and may be all of the memory in use.
    for_figures(
        "batch_size",
        (at_least("share.overhead", 0.15), below("memory.peak_share", 0.45)),
        "time per sample",
        "There is memory left: micro-batches of twice the size halve what communication and the host cost per sample; with half "
        "the accumulation steps, the batch per optimizer step stays the same",
        gain=0.5,
    ),
    for_figures(
        "activation_checkpointing",
        (*_FULL, below("kernels.recompute_share", 0.01), at_least("share.all_compute", 0.1)),
        "allocator retries",
        "Memory is short and nothing is recomputed: checkpoint the activations of the largest blocks (torch.utils.checkpoint); "
        "their forward is computed once more",
        gain=None,
        cost=FigureBound("share.all_compute", 1 / 3),
    ),
    for_figures(
        "shard",
        (*_FULL, at_least("collectives.all_reduce_share", 0.5), _REPLICATED),
        "allocator retries",
        "Memory is short and every rank holds the whole model: shard optimizer state and parameters (FSDP2, or "
        "ZeroRedundancyOptimizer)",
        gain=None,
    ),
    for_figures(
        "allocator",
        (_RETRIES,),
        "allocator retries",
        "Allocations fail at first and the allocator releases its cache, which stops the device: lower the peak, as with smaller "
        "micro-batches or by freeing tensors earlier",
        SEGMENTS,
        gain=None,
    ),
    for_figures(
        "fragmentation",
        (at_least("memory.fragmentation", 0.2), _RETRIES),
        "reserved beyond the peak of allocated memory",
        SEGMENTS,
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
        "Use twice the micro-batches per step, smaller ones if the batch is fixed: the schedule's bubble nearly halves",
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
        "evaluate_less",
        (at_least("share.evaluation", 0.1),),
        "share of evaluation",
        EVALUATE_LESS,
        kind="host_bound",
        cause="evaluation",
    ),
    for_figures(
        "save_aside",
        (at_least("share.checkpoint", 0.1),),
        "share of checkpoints",
        SAVE_ASIDE,
        kind="host_bound",
        cause="checkpoint",
    ),
    for_figures(
        "between_steps",
        (at_least("share.between_steps", 0.1),),
        "own time between steps",
        DUMP % "a few ranks",
        "Log, evaluate and checkpoint less often, or on another thread than the training loop's",
        kind="host_bound",
        reason="between_steps",
    ),
    for_figures(
        "gc_policy", (at_least("share.gc", 0.02),), "garbage collection per step", COLLECT, kind="host_bound", cause="gc"
    ),
    for_figures(
        "cpus",
        (at_least("share.run_queue", 0.05),),
        "waiting for a CPU",
        FEWER_THREADS,
        "See what else runs on the hosts: top, systemd-cgtop",
        kind="host_bound",
        reason="cpu_contention",
    ),
    for_figures(
        "see_why_idle",
        (at_least("share.idle_unexplained", 0.1), _ACCELERATED),
        "idle time",
        "Find out whether the device waits for input or for its host: mark the loading of data with "
        'torch.profiler.record_function("data_loading"), in a trace with CPU activities',
        "Or record step by step: {record}",
        f"For input: {LOAD_AHEAD}",
        f"For the host: {LAUNCH_LESS}",
        kind="host_bound",
        reason="host_or_input",
    ),
    for_figures(
        "stalls_everywhere",
        (at_least("share.stalled", 0.1),),
        "share of host",
        DUMP % "a few ranks",
        kind="host_bound",
        cause="host",
    ),
    for_figures("launch_less", (at_least("share.host", 0.15), _ACCELERATED), "share of host", LAUNCH_LESS, kind="host_bound"),
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
        "The job failed after {recorded}: fix the error, then start it again with the same command",
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
        "While it trains, profile steps, which separate work from waiting: rankscope capture {run} --steps {steps}",
        reason="few_windows",
    ),
    for_verdict(
        "insufficient_data",
        "The job has ended after {recorded}: record a run with more profiled steps: rankscope run --window-every 50 -- ...",
        reason="few_windows_over",
    ),
    for_verdict(
        "insufficient_data",
        "Let all ranks do as many steps, or end the step where they do it together: StepProfiler.step() (docs/recorder.md)",
        reason="steps_apart",
    ),
    for_verdict(
        "insufficient_data",
        "Waiting is measured in torch.distributed: let ranks of MPI communicate through it (init_process_group)",
        "Processes without a rank are recorded if RANK and WORLD_SIZE are set for each before its first step",
        "See the step times of each rank: rankscope dashboard {run}",
        reason="unseen_groups",
    ),
    for_verdict("insufficient_data", "See what each stage takes: rankscope dashboard {run}", reason="one_rank_per_stage"),
    for_verdict(
        "insufficient_data",
        "Trace again, and let every rank finish its file before it ends (export after prof.stop()); or record a run: {record}",
        reason="torn_trace",
    ),
    for_verdict(
        "insufficient_data",
        "Let the profiler see the device: ask for ProfilerActivity.CUDA, install and permit CUPTI or roctracer (NVIDIA's driver "
        "may restrict it to root; WSL and some containers lack it), run no other profiler beside it; then trace again",
        reason="no_activity",
    ),
    for_verdict("insufficient_data", "Trace the steps that launch the graph, after its capture", reason="captured_graph"),
    for_verdict("insufficient_data", "Trace again, with fewer steps or less detail, or record a run: {record}", reason="damaged"),
    for_verdict(
        "insufficient_data",
        "Name the kernels that communicate: {command}",
        "If there are none, trace whole steps, with the collectives in them, on the devices",
        reason="no_communication",
    ),
    for_verdict(
        "insufficient_data",
        "If they are of one job, name the files by rank: rank-0.json.gz, rank-1.json.gz, ...",
        "Or end the profiler before torch.distributed is shut down: the traces then have distributedInfo with the rank",
        reason="unknown_ranks",
    ),
    for_verdict(
        "insufficient_data",
        "Analyse the traces of one job at a time: rankscope analyze FILE...",
        "If they are of one job, name each file by its rank in the whole job, not on its host: rank-12.json.gz",
        reason="several_jobs",
    ),
    for_verdict("insufficient_data", "Repeat with more steps, or record a run: {record}", reason="short_recording"),
    for_verdict("insufficient_data", "Record a run, which shows how long each rank waits: {record}", reason="all_ranks_given"),
    for_verdict("insufficient_data", "Analyse the traces of all ranks together, or record a run: {record}"),
)
