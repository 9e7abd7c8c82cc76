"""Table of recommendations: conditions on named figures, the action, a bound on its gain, and how to check it.

A bound is the share of the step saved if the cost that the action addresses vanished, or the largest part of it that the action
can remove. To add a recommendation, add a row.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from rankscope.analysis.collectives.figures import Figure, Figures
from rankscope.analysis.result.costs import Advice, AdviceEvidence


class When(msgspec.Struct, frozen=True):
    """Condition that a figure is known and at least, or below, the limit."""

    figure: str
    comparison: Literal[">=", "<"]
    limit: float

    def holds(self, figures: Figures) -> bool:
        """Return whether the condition holds; an unknown figure meets no condition."""
        figure = figures.get(self.figure)
        return figure is not None and (figure.value >= self.limit if self.comparison == ">=" else figure.value < self.limit)


class Bound(msgspec.Struct, frozen=True):
    """Bound on a gain or cost, as a share of the step: factor · (sum of the figures)."""

    figures: tuple[str, ...]
    factor: float = 1.0

    def of(self, figures: Figures) -> float:
        """Return the bound as a share of the step, at most 1."""
        return min(1.0, self.factor * sum(figures[name].value for name in self.figures))

    @property
    def formula(self) -> str:
        """Formula of the bound, as text for people."""
        total = " + ".join(self.figures)
        if self.factor == 1:
            return total
        return f"{self.factor:.3g} * ({total})" if len(self.figures) > 1 else f"{self.factor:.3g} * {total}"


class Row(msgspec.Struct, frozen=True):
    """Row of the table.

    ``{who}`` in an action stands for the ranks that the verdict names. ``falls``: the figure that must fall if the action helped.
    """

    name: str
    when: tuple[When, ...]
    action: str
    gain: Bound | None
    falls: str
    cost: Bound | None = None


def at_least(figure: str, limit: float) -> When:
    """Return the condition that ``figure`` is at least ``limit``."""
    return When(figure, ">=", limit)


def below(figure: str, limit: float) -> When:
    """Return the condition that ``figure`` is below ``limit``."""
    return When(figure, "<", limit)


_EXPOSED: Final = "share.exposed_communication"
_ROOM: Final = below("memory.peak_share", 0.6)
# Activations double with the batch, and may be all of the memory in use.
_ROOM_FOR_TWICE: Final = below("memory.peak_share", 0.45)
_FULL: Final = at_least("memory.peak_share", 0.9)
_ACCELERATED: Final = at_least("accelerated", 1)
_OTHER_HOSTS: Final = at_least("hosts", 2)

TABLE: Final[tuple[Row, ...]] = (
    # Input
    Row(
        "data_loading",
        (at_least("share.input", 0.05),),
        "Load ahead: raise the DataLoader's num_workers and prefetch_factor, keep persistent_workers on; store samples "
        "decoded and in large files; move transforms off the training thread",
        Bound(("share.input",)),
        "share of input",
    ),
    Row(
        "data_loading_of_rank",
        (at_least("straggler.input", 0.02),),
        "Only {who} waits for data: compare the storage and the CPU load of its host with a healthy host's, and the size of "
        "its shard of the data with the others'",
        Bound(("straggler.input",)),
        "straggler wait",
    ),
    Row(
        "copies",
        (at_least("share.copies", 0.03), _ACCELERATED),
        "Hide copies: pin_memory=True in the DataLoader, .to(device, non_blocking=True), and copy the next batch on a stream"
        " of its own while this one is computed",
        Bound(("share.copies",)),
        "share of copies",
    ),
    # Compute
    Row(
        "mixed_precision",
        (at_least("share.compute", 0.3), at_least("kernels.float32_share", 0.3), _ACCELERATED),
        "Compute in 16 bits: torch.autocast with bfloat16 (float16 and torch.amp.GradScaler on GPUs without it), or mixed "
        "precision of FSDP; where 32 bits must stay, allow TF32 (torch.set_float32_matmul_precision)",
        Bound(("share.compute",)),
        "share of compute",
    ),
    Row(
        "faster_kernels",
        (at_least("share.compute", 0.5), below("mfu", 0.3), below("kernels.float32_share", 0.3)),
        "Kernels reach little of the device's peak: torch.compile, fused attention and optimizers, sizes that are multiples "
        "of 64",
        Bound(("share.compute",)),
        "share of compute",
    ),
    # Communication
    Row(
        "overlap",
        (at_least(_EXPOSED, 0.1), below("overlap_ratio", 0.5), at_least("collectives.all_reduce_share", 0.5)),
        "Let gradients be reduced while backward goes on: a smaller bucket_cap_mb where they all fit into a few buckets; nothing "
        "in backward that waits for the device; if DDP has find_unused_parameters=True, static_graph=True instead where the "
        "graph is the same in all steps",
        Bound((_EXPOSED,)),
        "share of exposed communication",
    ),
    Row(
        "prefetch_shards",
        (at_least(_EXPOSED, 0.1), below("overlap_ratio", 0.5), at_least("collectives.sharding_share", 0.5)),
        "Gather more layers ahead (set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of FSDP2, "
        "forward_prefetch=True of FSDP1), and wrap layers of like size each",
        Bound((_EXPOSED,)),
        "share of exposed communication",
    ),
    Row(
        "bucket_size",
        (at_least(_EXPOSED, 0.05), below("collectives.median_bytes", 1 << 20), at_least("collectives.messages", 4)),
        "Send fewer, larger messages: raise bucket_cap_mb of DDP, or wrap larger modules in FSDP",
        Bound((_EXPOSED,)),
        "share of exposed communication",
    ),
    Row(
        "gradient_accumulation",
        (at_least(_EXPOSED, 0.15), at_least("collectives.all_reduce_share", 0.5)),
        "Reduce gradients every second batch only: no_sync() and twice the accumulation steps (the batch per optimizer step "
        "doubles)",
        Bound((_EXPOSED,), 0.5),
        "exposed communication per sample",
    ),
    Row(
        "keep_parameters",
        (at_least(_EXPOSED, 0.1), at_least("collectives.sharding_share", 0.5), _ROOM),
        "There is room for whole parameters: reshard_after_forward=False (FSDP2) or SHARD_GRAD_OP (FSDP1), and they are not "
        "gathered again for backward, one of three transfers; or let shards stay within a host (HSDP)",
        Bound((_EXPOSED,)),
        "share of exposed communication",
    ),
    Row(
        "interconnect",
        (at_least(_EXPOSED, 0.2), _OTHER_HOSTS),
        "Check the way between the hosts: what it gives alone (nccl-tests, iperf3), and which one the job takes "
        "(NCCL_DEBUG=INFO names GPUDirect RDMA and NICs; GLOO_SOCKET_IFNAME is gloo's); keep the ranks of the busiest groups "
        "on one host or switch",
        Bound((_EXPOSED,)),
        "share of exposed communication",
    ),
    # Batch and memory
    Row(
        "batch_size",
        (at_least("share.overhead", 0.15), _ROOM_FOR_TWICE),
        "There is memory left: twice the batch per rank halves what communication and the host cost per sample (and asks for "
        "another learning rate)",
        Bound(("share.overhead",), 0.5),
        "time per sample",
    ),
    Row(
        "activation_checkpointing",
        (_FULL, at_least("share.all_compute", 0.1)),
        "Memory is nearly full: checkpoint the activations of the largest blocks (torch.utils.checkpoint) to make room, such"
        " as for larger batches; forward is computed once more",
        None,
        "peak of allocated memory",
        cost=Bound(("share.all_compute",), 1 / 3),
    ),
    Row(
        "shard",
        (_FULL, at_least("collectives.all_reduce_share", 0.5), below("collectives.sharding_share", 0.1)),
        "Every rank holds the whole model and memory is nearly full: shard optimizer state and parameters (FSDP2, or "
        "ZeroRedundancyOptimizer)",
        None,
        "peak of allocated memory",
    ),
    Row(
        "allocator",
        (at_least("memory.retries", 1),),
        "The allocator ran out and gave back its cache, which stops the device: set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or lower the peak",
        None,
        "allocator retries",
    ),
    Row(
        "fragmentation",
        (at_least("memory.fragmentation", 0.2), at_least("memory.peak_share", 0.7)),
        "Much of what the allocator holds was never in use at one time: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; "
        "pad batches to few different lengths",
        None,
        "reserved beyond the peak of allocated memory",
    ),
    Row(
        "device_leak",
        (at_least("memory.device_leak", 0),),
        "Tensors pile up on the device: keep numbers, not tensors with their graph (loss.item() or .detach()), in lists and "
        "metrics; torch.cuda.memory._record_memory_history shows who holds them",
        None,
        "growth of allocated memory",
    ),
    Row(
        "host_leak",
        (at_least("memory.host_leak", 0),),
        "The process grows on the host: look for lists that are only appended to, and Python objects that DataLoader workers"
        " copy on write; tracemalloc shows where they were made",
        None,
        "growth of resident memory",
    ),
    # Pipeline
    Row(
        "micro_batches",
        (at_least("pipeline.schedule", 0.05),),
        "Use twice the micro-batches per step: the schedule's bubble halves; or an interleaved or zero-bubble schedule",
        Bound(("pipeline.schedule",), 0.5),
        "pipeline bubble",
    ),
    Row(
        "stages",
        (at_least("pipeline.imbalance", 0.03),),
        "Move layers from the slowest stage to the others; embeddings and the loss count, too",
        Bound(("pipeline.imbalance",)),
        "pipeline bubble",
    ),
    # Host
    Row(
        "launch_less",
        (at_least("share.host", 0.15), _ACCELERATED),
        "The host does not keep the device busy: torch.compile, CUDA graphs, larger batches; no .item(), .cpu() or print of "
        "tensors in the loop",
        Bound(("share.host",)),
        "share of host",
    ),
    Row(
        "between_steps",
        (at_least("share.between_steps", 0.1),),
        "Do less between the steps: log, evaluate and checkpoint less often, or on another thread",
        Bound(("share.between_steps",)),
        "own time between steps",
    ),
    Row(
        "gc_policy",
        (at_least("share.gc", 0.02),),
        "Collect garbage when it suits: gc.freeze() after start-up, gc.disable(), and gc.collect() every so many steps on "
        "all ranks at the same one",
        Bound(("share.gc",)),
        "garbage collection per step",
    ),
    Row(
        "gc_policy_of_rank",
        (at_least("straggler.gc", 0.02),),
        "Garbage collection of {who} stops everybody: gc.freeze() after start-up, and gc.collect() every so many steps on "
        "all ranks at the same one",
        Bound(("straggler.gc",)),
        "straggler wait",
    ),
    Row(
        "cpus",
        (at_least("share.run_queue", 0.05),),
        "Threads queue for CPUs: ranks of a host x (OMP_NUM_THREADS + num_workers) must not exceed its cores; pin ranks to "
        "cores of their own",
        Bound(("share.run_queue",)),
        "waiting for a CPU",
    ),
    Row(
        "see_why_idle",
        (at_least("share.idle_unexplained", 0.1), _ACCELERATED),
        "The device has nothing to do, and whether it waits for input or for the host is not known: record step by step "
        "(rankscope run -- torchrun ... train.py), or trace CPU activities, too",
        Bound(("share.idle_unexplained",)),
        "idle time",
    ),
    Row(
        "stalls_everywhere",
        (at_least("share.stalled", 0.1),),
        "Host code inside the step neither computes nor waits for anybody: py-spy dump shows in what it stalls; then "
        "logging, locks and storage",
        Bound(("share.stalled",)),
        "share of host",
    ),
    # Ranks that the verdict names
    Row(
        "cpus_of_rank",
        (at_least("straggler.cpu_contention", 0.05),),
        "{who} queues for CPUs: find what else runs on its host (top, systemd-cgtop), lower OMP_NUM_THREADS there, and give "
        "it CPUs of its own",
        Bound(("straggler.cpu_contention",)),
        "straggler wait",
    ),
    Row(
        "compare_devices",
        (at_least("straggler.compute", 0.05),),
        "{who} needs longer for the same work: compare clocks, temperature and power of its device with those of the others, and "
        "see what else runs on it",
        Bound(("straggler.compute",)),
        "straggler wait",
    ),
    Row(
        "replace_host",
        (at_least("straggler.compute", 0.05), _OTHER_HOSTS),
        "{who} needs longer for the same work: start again without its host; if the slowness stays behind, replace the host "
        "or its GPU",
        Bound(("straggler.compute",)),
        "straggler wait",
    ),
    Row(
        "mend_hardware",
        (at_least("straggler.hardware", 0.05),),
        "The hardware of {who} holds it back, as the finding says: have it mended or replaced, and start again without it "
        "where the job has others",
        Bound(("straggler.hardware",)),
        "straggler wait",
    ),
    Row(
        "memory_of_rank",
        (at_least("straggler.memory_pressure", 0.05),),
        "The allocator of {who} runs out and starts over: a smaller batch or activation checkpointing there, see what else "
        "lives on its GPU (nvidia-smi), PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        Bound(("straggler.memory_pressure",)),
        "straggler wait",
    ),
    Row(
        "stalls",
        (at_least("straggler.host", 0.05),),
        "The host of {who} comes late: py-spy dump shows what its code stalls in, or that it waits for its data loader; then "
        "logging, storage and locks on its host",
        Bound(("straggler.host",)),
        "straggler wait",
    ),
    Row(
        "balance_work",
        (at_least("straggler.imbalance", 0.05),),
        "{who} gets more work: bucket samples by length, or cap the tokens of a batch",
        Bound(("straggler.imbalance",)),
        "straggler wait",
    ),
    Row(
        "checkpoints",
        (at_least("straggler.checkpoint", 0.02),),
        "Everybody waits while {who} writes checkpoints: write them asynchronously "
        "(torch.distributed.checkpoint.async_save), or shard them",
        Bound(("straggler.checkpoint",)),
        "straggler wait",
    ),
    Row(
        "evaluation",
        (at_least("straggler.evaluation", 0.02),),
        "All ranks wait while {who} evaluates: evaluate less often, share the evaluation equally among all ranks, or run it "
        "in a job of its own",
        Bound(("straggler.evaluation",)),
        "straggler wait",
    ),
)


def derived(figures: Figures) -> dict[str, Figure]:
    """Return the figures, with those that are derived from others."""
    found = dict(figures)
    compute = figures.get("share.compute")
    if compute is not None:
        ideal = figures.get("share.ideal", Figure(0.0))
        found["share.all_compute"] = Figure(compute.value + ideal.value, source=compute.source, stage=compute.stage)
    exposed, host = figures.get(_EXPOSED), figures.get("share.host")
    if exposed is not None and host is not None:
        found["share.overhead"] = Figure(exposed.value + host.value, source=exposed.source, stage=host.stage)
    if "share.idle" in figures and "share.host" not in figures:
        found["share.idle_unexplained"] = figures["share.idle"]
    return found


def recommend(figures: Figures, *, step_us: float | None, run: str | None, who: str) -> list[Advice]:
    """Return the advice whose conditions all hold, largest bound on the gain first.

    ``who``: the ranks that the verdict names.
    """
    known = derived(figures)
    rows = [row for row in TABLE if all(condition.holds(known) for condition in row.when)]
    found = [_advice(row, known, step_us, run, who) for row in rows]
    return sorted(found, key=lambda one: -1.0 if one.gain_share_at_most is None else one.gain_share_at_most, reverse=True)


def _advice(row: Row, figures: Mapping[str, Figure], step_us: float | None, run: str | None, who: str) -> Advice:
    gain = None if row.gain is None else row.gain.of(figures)
    command = "rankscope analyze NEW_TRACES" if run is None else f"rankscope compare {shlex.quote(run)} NEW_RUN"
    action = row.action.replace("{who}", who)
    stages = sorted({stage for condition in row.when if (stage := figures[condition.figure].stage) is not None})
    if stages:
        action += f" (most of it is on pipeline stage {', '.join(map(str, stages))})"
    return Advice(
        name=row.name,
        evidence=[
            AdviceEvidence(
                name=condition.figure,
                value=figures[condition.figure].value,
                unit=figures[condition.figure].unit,
                source=figures[condition.figure].source,
                stage=figures[condition.figure].stage,
                limit=f"{condition.comparison} {condition.limit:g}",
            )
            for condition in row.when
        ],
        action=action[:1].upper() + action[1:],
        gain_share_at_most=gain,
        gain_us_at_most=None if gain is None or step_us is None else gain * step_us,
        gain_formula=None if row.gain is None else row.gain.formula,
        cost_share_at_most=None if row.cost is None else row.cost.of(figures),
        check=f"{command}: {row.falls} must fall",
    )
