"""Next actions: a table from kinds of findings to commands and actions."""

from __future__ import annotations

import re
import shlex
from string import Formatter
from typing import Final

import msgspec

from rankscope.analysis.result.analysis import Cause, Kind
from rankscope.analysis.result.text import counted


class AdviceRow(msgspec.Struct, frozen=True):
    """Row of the advice table. ``None`` matches anything; the first row that matches gives the advice.

    Actions are templates. Their placeholders are ``{run}``, ``{rank}``, ``{host}``, ``{without}`` (the host, if the job has
    others), ``{node}`` (likewise, if its name is safe in a command), ``{steps}`` (number of steps to profile), ``{recorded}``
    (recorded steps) and ``{record}`` (command that records a run, if there is no run yet). An action with a placeholder whose
    value is not known is left out.
    """

    kind: Kind
    cause: Cause | None
    explained_by: str | None
    actions: tuple[str, ...]


_SHOW: Final = "rankscope dashboard {run}"
_RECORD: Final = "Record every step, with phases and CPU time of rank {rank}: {record}"
_RECORD_COMMAND: Final = "rankscope run -- torchrun ... train.py"

_ENDED: Final = "The job has ended after {recorded}: record a run of more steps: "

ROTATING: Final = (
    "Look for what the ranks share, or what comes and goes on their hosts: storage, logging, scheduled jobs, neighbours"
)
"""Advice for a slowdown that moves between ranks: no rank or host is at fault by itself."""
_DRAIN: Final = 'Take the host out: scontrol update NodeName={node} State=DRAIN Reason="rankscope: rank {rank} slow, %s"'
_READINGS: Final = "Look at the readings of rank {rank}'s GPU on {host}: nvidia-smi -q -d %s"
_NODE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})?")


def _physical(reason: str, topics: str, *actions: str) -> AdviceRow:
    """Return the advice for a rank that is slow because of its hardware."""
    return AdviceRow("straggler", None, reason, (*actions, _READINGS % topics, _DRAIN % reason.replace("_", " "), _SHOW))


ADVICE: Final[tuple[AdviceRow, ...]] = (
    _physical(
        "xid", "PAGE_RETIREMENT,ECC", "On {host}, find the errors in the kernel's log, and what each asks for: dmesg | grep Xid"
    ),
    _physical(
        "ecc",
        "ECC,ROW_REMAPPER",
        "Reset rank {rank}'s GPU on {host} once the job is off it; if the errors come again, replace it",
    ),
    _physical("thermal_throttle", "TEMPERATURE,PERFORMANCE", "Check airflow, fans and coolant of {host}"),
    _physical("power_brake", "POWER,PERFORMANCE", "Check the power supplies of {host} and what its rack may draw"),
    _physical(
        "power_cap", "POWER", "Compare the power limit of rank {rank}'s GPU with the others', and whether the room allows more"
    ),
    _physical(
        "clock", "CLOCK,PERFORMANCE", "If somebody set the clocks of {host}'s GPUs, reset them: nvidia-smi -rgc; nvidia-smi -rac"
    ),
    _physical(
        "link",
        "PERFORMANCE",
        "Compare the PCIe links of {host}: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
        "Find NVLinks that are down or have errors on {host}: nvidia-smi nvlink -s; nvidia-smi nvlink -e",
    ),
    AdviceRow(
        "straggler",
        None,
        "memory_pressure",
        (
            "Use less memory on rank {rank}: a smaller batch, activation checkpointing, or what else lives on its GPU on {host}",
            "Let the allocator fragment less: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            _SHOW,
        ),
    ),
    AdviceRow(
        "straggler",
        "input",
        None,
        (
            "On rank {rank}, time the dataset alone; compare its storage and CPU load on {host} with a healthy host's",
            "Raise num_workers or prefetch_factor of the DataLoader, or move the transform out of the loop",
            _SHOW,
        ),
    ),
    AdviceRow(
        "straggler",
        "compute",
        "cpu_contention",
        (
            "On {host}, find what else runs there (top, systemd-cgtop) and give rank {rank} CPUs of its own",
            "Lower OMP_NUM_THREADS where ranks share a host",
            _SHOW,
        ),
    ),
    AdviceRow(
        "straggler",
        "compute",
        None,
        (
            "Compare clocks, temperature and power of rank {rank}'s device with its neighbours': rankscope exporter",
            "Start the job again without {without}; if the slowness stays behind, the host has it",
            _SHOW,
        ),
    ),
    AdviceRow(
        "straggler",
        "imbalance",
        None,
        ("Balance the work: bucket by length or cap tokens per batch, so that rank {rank} gets what the others get", _SHOW),
    ),
    AdviceRow(
        "straggler",
        "gc",
        None,
        ("Call gc.freeze() after start-up and gc.collect() every N steps on all ranks at the same step", _SHOW),
    ),
    AdviceRow(
        "straggler",
        "checkpoint",
        None,
        ("Write checkpoints asynchronously, or shard them over all ranks", _SHOW),
    ),
    AdviceRow(
        "straggler",
        "evaluation",
        None,
        ("Evaluate less often, or share the evaluation among all ranks; evaluate the same batches on each of them", _SHOW),
    ),
    AdviceRow(
        "straggler",
        "host",
        None,
        (
            "On {host}, look at what rank {rank} waits for: py-spy dump, slow logging or storage, locks",
            _SHOW,
            _RECORD,
        ),
    ),
    AdviceRow(
        "straggler",
        None,
        None,
        (
            "Look at rank {rank} on the page",
            _SHOW,
            "Start the job again without {without}; if the slowness stays behind, the host has it",
        ),
    ),
    AdviceRow(
        "communication_bound",
        "communication",
        "link",
        (
            "Measure the same links without the job, as with nccl-tests: all_reduce_perf -b 64M -e 1G -f 2",
            "If they are slow there, too, look at the hardware: nvidia-smi nvlink --status, nvidia-smi topo -m, ibstat, ethtool",
            "If they are not, see which transport the job took: NCCL_DEBUG=INFO names NVLS, P2P, SHM, NET/IB or NET/Socket",
            _SHOW,
        ),
    ),
    AdviceRow(
        "communication_bound",
        None,
        None,
        (
            "Hide more of it behind backward, or have less of it: gradient accumulation, communication in lower precision",
            "Check the links between the ranks",
            _SHOW,
        ),
    ),
    AdviceRow(
        "pipeline_bubble",
        None,
        "schedule",
        (
            "Use more micro-batches per step, or gradient accumulation: twice as many nearly halve the schedule's bubble",
            "Try an interleaved or zero-bubble schedule",
            _SHOW,
        ),
    ),
    AdviceRow(
        "pipeline_bubble",
        None,
        "stage_imbalance",
        ("Move layers from the slowest stage to the others; embeddings and the loss count, too", _SHOW),
    ),
    AdviceRow(
        "pipeline_bubble",
        None,
        None,
        (
            "See what the ranks wait in: rankscope capture {run} --steps 3",
            "Check the links between the stages' hosts; smaller activations (lower precision) travel faster",
            _SHOW,
        ),
    ),
    AdviceRow("input_bound", None, None, ("Raise num_workers and prefetch_factor of the DataLoader; check the storage", _SHOW)),
    AdviceRow(
        "host_bound",
        None,
        "cpu_contention",
        (
            "Give the ranks of a host more CPUs, or fewer threads (OMP_NUM_THREADS); see what else runs there (top)",
            _SHOW,
        ),
    ),
    AdviceRow(
        "host_bound",
        "gc",
        None,
        ("Call gc.freeze() after start-up and gc.collect() every N steps on all ranks at the same step", _SHOW),
    ),
    AdviceRow(
        "host_bound",
        "host",
        None,
        (
            "Find what the training process does in that time (py-spy dump): logging, storage, evaluation, sleeps",
            "Do it less often, or on another thread than the training loop's",
            _SHOW,
        ),
    ),
    AdviceRow(
        "host_bound",
        None,
        "idle_unexplained",
        (
            "Find out whether the device waits for input or for its host: trace CPU activities, or record all steps: {record}",
            _SHOW,
            "For input, raise num_workers and prefetch_factor of the DataLoader; for the host, launch less: torch.compile",
        ),
    ),
    AdviceRow(
        "host_bound", None, None, ("Launch less: torch.compile, CUDA graphs, larger batches; avoid .item() in the loop", _SHOW)
    ),
    AdviceRow(
        "compute_bound", None, None, ("Speed up the model itself: torch.compile, lower precision, fused optimizers", _SHOW)
    ),
    AdviceRow("balanced", None, None, (_SHOW,)),
    AdviceRow(
        "insufficient_data",
        None,
        "short_capture",
        ("While it trains, profile more steps: rankscope capture {run} --steps {steps}",),
    ),
    AdviceRow(
        "insufficient_data",
        None,
        "silent",
        (
            "If the job hangs, have its ranks write which collective they wait in: rankscope capture {run} --flight-recorder",
            "If it has vanished with its nodes, start it again: the same command is the run's next attempt",
        ),
    ),
    AdviceRow("insufficient_data", None, "few_steps", ("Let it train on, then: rankscope analyze {run}",)),
    AdviceRow(
        "insufficient_data",
        None,
        "few_steps_over",
        (_ENDED + _RECORD_COMMAND,),
    ),
    AdviceRow(
        "insufficient_data",
        None,
        "few_ranks",
        ("See on the stderr of the other ranks why they are not recorded: all must be able to write to {run}",),
    ),
    AdviceRow(
        "insufficient_data",
        None,
        "few_windows",
        ("While it trains, profile steps, which tell working from waiting: rankscope capture {run} --steps {steps}",),
    ),
    AdviceRow(
        "insufficient_data",
        None,
        "few_windows_over",
        ("The job has ended after {recorded}: record a run with more profiled steps: rankscope run --window-every 50 -- ...",),
    ),
    AdviceRow(
        "insufficient_data",
        None,
        "failed",
        ("The job failed after {recorded}: mend the error, then start it again; the same command is the run's next attempt",),
    ),
    AdviceRow("insufficient_data", None, "one_rank_per_stage", ("See what each stage takes: rankscope dashboard {run}",)),
    AdviceRow(
        "insufficient_data",
        None,
        "torn_trace",
        ("Trace again, and let every rank finish its file before it ends (export after prof.stop()); or record a run: {record}",),
    ),
    AdviceRow("insufficient_data", None, None, ("Analyse the traces of all ranks together, or record a run: {record}",)),
)


def next_actions(
    kind: Kind,
    *,
    cause: Cause | None = None,
    explained_by: str | None = None,
    run: str | None = None,
    rank: int | None = None,
    host: str | None = None,
    hosts: int = 0,
    steps: int | None = None,
    recorded: int = 0,
) -> list[str]:
    """Return the actions for a verdict, most useful first.

    ``hosts``: number of known hosts of the job. A job of one host, or of unknown hosts, cannot do without ``host``.
    """
    without = host if hosts > 1 else None
    known: dict[str, object] = {
        name: value
        for name, value in (
            ("run", None if run is None else shlex.quote(run)),
            ("rank", rank),
            ("host", host),
            ("without", without),
            ("node", without if without and _NODE.fullmatch(without) else None),
            ("steps", steps),
            ("recorded", counted(recorded, "step")),
            ("record", None if run else _RECORD_COMMAND),
        )
        if value is not None
    }
    for row in ADVICE:
        if row.kind == kind and row.cause in (None, cause) and row.explained_by in (None, explained_by):
            return [action.format(**known) for action in row.actions if _fits(action, known)]
    return []


def _fits(action: str, known: dict[str, object]) -> bool:
    return all(name in known for _, name, _, _ in Formatter().parse(action) if name is not None)
