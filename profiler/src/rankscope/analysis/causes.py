"""The table of causes: names, rules by which they are found, the parts of a step that they explain, and what to do about them.

To add a cause, add its name to ``Cause`` (``result/cause.py``) and a row to ``CAUSES``, and its label and look to those of the
pages (``dashboards/charts/causes.py``). The reasons that lie below a cause are in ``inference/reasons/physical.py`` and
``inference/reasons/slow_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rankscope.analysis.remedies import (
    COLLECT,
    DUMP,
    EVALUATE_LESS,
    FEWER_THREADS,
    LINKS_ALONE,
    LOAD_AHEAD,
    LOAD_IN_WORKERS,
    OUT_OF_SERVICE,
    RECORD_ALL,
    SAVE_ASIDE,
    SERVED,
    SHARED,
    WITHOUT,
    WITHOUT_HOST,
    Remedy,
    remedy,
)
from rankscope.analysis.result.cause import MORE_WORK, Cause
from rankscope.runs.records import Phase

if TYPE_CHECKING:
    from rankscope.analysis.inference.reasons.signals import Signals


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Row of the table. The first row that applies to a slow rank gives the cause."""

    cause: Cause
    applies: Callable[[Signals], bool]
    wording: str | Callable[[Signals], str]
    """Wording for people: the end of "Rank 2 makes the others wait: …"."""
    explained_by: str | None = None
    called: str = ""
    """Name of the cause for people, where it may be more than ``cause``."""
    meter: str | None = None
    """Metric of step records that is the time which the cause takes."""
    tag: str | None = None
    """Tag of the steps in which the cause takes time."""
    phases: tuple[Phase, ...] = ()
    """Phases whose own time is that which the cause takes."""
    idles: bool = False
    """True if the device has nothing to do in the time that the cause takes."""
    noun: str = ""
    """What takes the time of rare steps with this cause."""
    remedies: tuple[Remedy, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedCause:
    """Cause of a slowness, and its wording."""

    cause: Cause
    explained_by: str | None
    wording: str
    """The end of "Rank 2 makes the others wait: …"."""
    called: str = ""
    """Name of the cause for people, where it may be more than ``cause``."""


def row_of(signals: Signals) -> CauseRow:
    """Return the first row of the table that applies."""
    return next(row for row in CAUSES if row.applies(signals))


def cause_of(signals: Signals) -> ExplainedCause:
    """Return the cause of the first row that applies, with its wording."""
    row = row_of(signals)
    wording = row.wording if isinstance(row.wording, str) else row.wording(signals)
    return ExplainedCause(row.cause, row.explained_by, wording, row.called)


def _is_either(signals: Signals) -> bool:
    # Both may explain the whole excess if their times are not known apart, or neither half of it if they are.
    parts = [signals.part(us) for us in signals.activities_us.values()]
    return len(parts) > 1 and (min(parts) >= 0.5 or (max(parts) < 0.5 and sum(parts) >= 0.5))


def _is_profiler(signals: Signals) -> bool:
    # A profiler takes processor time: a rank that sleeps is late for another reason. A host may wait for its device anywhere.
    on_device = signals.device_unseen or signals.device_busy_us is not None
    awake = not signals.sleeps if on_device or signals.cpu_us is None else _uses_processor(signals)
    return awake and signals.part(signals.profiler_us) >= 0.5


def _has_more_work(signals: Signals) -> bool:
    return (signals.work or 0) >= MORE_WORK and signals.phase != "data" and _may_compute(signals)


def _may_compute(signals: Signals) -> bool:
    measured = not signals.device_unseen and (signals.cpu_us is not None or signals.device_busy_us is not None)
    return _uses_processor(signals) or not measured


def _is_computed(signals: Signals, kernels_us: float) -> bool:
    """Return whether kernels that take ``kernels_us`` longer make up half of the excess without queueing for CPUs."""
    queueing = max(0.0, signals.run_queue_us or 0.0)
    return _may_compute(signals) and kernels_us >= 0.5 * (signals.own_us - queueing)


def _uses_processor(signals: Signals) -> bool:
    # Where CPUs are short, a rank that needs more CPU time also queues longer for it: their sum is the cost of the work.
    cpu, queue = signals.part(signals.cpu_us), signals.part(signals.run_queue_us)
    return (cpu >= 0.15 and cpu + max(queue, 0.0) >= 0.4) or signals.part(signals.device_busy_us) >= 0.3


def _work(signals: Signals) -> str:
    """Return for which work a rank needs longer, as far as it was counted."""
    calls = signals.calls
    counted = signals.same_calls or (calls is not None and calls.is_same_work and _is_computed(signals, calls.excess_us))
    same_size = signals.work is not None and abs(signals.work) < MORE_WORK
    if counted:
        return " for the same work" if same_size else " for as many calls"
    return " for inputs of the same size" if same_size else ""


COMPARE_HOSTS: Final = remedy("compare_hosts", SERVED, SHARED, WITHOUT_HOST, OUT_OF_SERVICE, whole_host=True)

_ADDITIONAL_WORK: Final = remedy(
    "additional_work",
    "Look at {stalls_at} in the code: why does {ranks} run it more often than the others?",
    "Find what {ranks} computes and the others do not: branches by rank, layers that only it has, metrics, retries",
    figure="additional_work",
)


def _is_input(signals: Signals) -> bool:
    in_loader = signals.phase == "data" or (signals.phase == "h2d" and not _has_more_work(signals))
    return in_loader or signals.loads_in is not None


def _has_no_workers(signals: Signals) -> bool:
    return signals.loader_workers == 0 and (signals.phase == "data" or signals.loads_in == "background_thread")


def _input(signals: Signals) -> str:
    if signals.phase in ("data", "h2d"):
        return "its batches load slowly" if _has_no_workers(signals) else "its data loader is slow"
    waits = "waits for batches that load slowly" if signals.loads_in != "training_thread" else "loads its batches slowly"
    return f"its training thread {waits}"


_THREADS: Final = ("one background thread", "its training thread")

_TIME_DATASET: Final = (
    "Time the dataset of {ranks} alone, and compare its storage, its CPU load and the size of its shard with the others'"
)
_COMPARE_STORAGE: Final = (
    "Compare the storage of {host} with another host's: mounts, caches, its network, and what else reads there (iostat -x)"
)
_LINE_OF_DATASET: Final = "Look at {stalls_at}, where {ranks} loads: what takes longer there than on the others?"


def _takes(cause: Cause) -> Callable[[Signals], bool]:
    return lambda signals: signals.part(signals.activities_us.get(cause)) >= 0.5


def _either(alone: str, longer: str, *causes: Cause) -> Callable[[Signals], str]:
    """Return the wording of activities that the rank does alone, or that take longer on it."""
    return lambda signals: alone if signals.alone.issuperset(causes) else longer


CAUSES: Final[tuple[CauseRow, ...]] = (
    CauseRow(
        "gc",
        lambda s: s.part(s.gc_us) >= 0.5,
        "it stops for Python's garbage collection",
        meter="gc_us",
        noun="garbage collection",
        idles=True,
        remedies=(remedy("gc_policy_of_rank", COLLECT, at_least=0.02),),
    ),
    CauseRow(
        "checkpoint",
        _is_either,
        _either(
            "it alone writes checkpoints and evaluates",
            "its checkpoints or evaluations take longer than the others'",
            "checkpoint",
            "evaluation",
        ),
        called="checkpoint or evaluation",
        idles=True,
    ),
    CauseRow(
        "checkpoint",
        _takes("checkpoint"),
        _either("it alone writes checkpoints", "its checkpoints take longer than the others'", "checkpoint"),
        tag="checkpoint",
        noun="checkpoints",
        idles=True,
        remedies=(remedy("checkpoints", SAVE_ASIDE, at_least=0.02),),
    ),
    CauseRow(
        "evaluation",
        _takes("evaluation"),
        _either("it alone evaluates", "its evaluation takes longer than the others'", "evaluation"),
        tag="eval",
        noun="evaluation",
        idles=True,
        remedies=(remedy("evaluation", EVALUATE_LESS, at_least=0.02),),
    ),
    CauseRow(
        "input",
        _has_no_workers,
        lambda s: f"{_input(s)}, and {_THREADS[s.phase == 'data']} loads all of them itself (num_workers=0)",
        explained_by="no_workers",
        idles=True,
        remedies=(
            remedy("load_in_workers_of_host", LOAD_IN_WORKERS, _COMPARE_STORAGE, at_least=0.02, whole_host=True),
            remedy("load_in_workers", LOAD_IN_WORKERS, _LINE_OF_DATASET, _TIME_DATASET, at_least=0.02),
        ),
    ),
    CauseRow(
        "input",
        _is_input,
        _input,
        phases=("data", "h2d"),
        noun="the data loader",
        idles=True,
        remedies=(
            remedy("data_loading_of_host", _COMPARE_STORAGE, LOAD_AHEAD, at_least=0.02, whole_host=True),
            remedy("data_loading_of_rank", _LINE_OF_DATASET, _TIME_DATASET, LOAD_AHEAD, at_least=0.02),
        ),
    ),
    CauseRow(
        "imbalance",
        lambda s: _has_more_work(s) and s.loaded_work is not None and s.loaded_work < (s.work or 0) / 2,
        "its script makes the batches larger after the loader, so its model is given more than the others'",
        explained_by="enlarged_batches",
        remedies=(
            remedy(
                "equal_batches",
                "Find what the script of {ranks} adds to its batches after the loader (padding, augmentation, repeated or "
                "generated samples), and give every rank as much; compare model_elements with input_elements: rankscope steps "
                "{run} --format csv",
            ),
        ),
    ),
    CauseRow(
        "imbalance",
        _has_more_work,
        "it is given more work than the others",
        remedies=(
            remedy(
                "balance_work",
                "Give {ranks} and the others as many tokens: pack sequences, or batch by length with a cap on tokens; for "
                "experts, an auxiliary loss or a lower capacity factor",
            ),
        ),
    ),
    CauseRow(
        "host",
        _is_profiler,
        "the script's own profiler runs on it",
        explained_by="profiler",
        idles=True,
        remedies=(
            remedy(
                "own_profiler",
                "Switch the script's own profiler off on {ranks}, or let it trace a few steps only: "
                "torch.profiler.schedule(wait, warmup, active, repeat=1); record_shapes, profile_memory and with_stack cost "
                "most",
            ),
        ),
    ),
    CauseRow(
        "imbalance",
        lambda s: s.calls is not None and s.calls.is_more_work and _is_computed(s, s.calls.excess_us),
        lambda s: f"it does more work than the others: {'' if s.calls is None else s.calls.described}",
        explained_by="more_calls",
        remedies=(_ADDITIONAL_WORK,),
    ),
    CauseRow(
        "imbalance",
        lambda s: s.other_line and _uses_processor(s),
        "it runs code that the others never reach",
        explained_by="other_code",
        remedies=(_ADDITIONAL_WORK,),
    ),
    CauseRow(
        "compute",
        lambda s: s.part(s.run_queue_us) >= 0.5 > s.part(s.device_busy_us),
        "it waits for a CPU that something else uses",
        explained_by="cpu_contention",
        meter="run_queue_us",
        idles=True,
        remedies=(
            remedy(
                "cpus_of_rank",
                "Find what else runs beside {ranks} (top, systemd-cgtop), and give it CPUs of its own",
                FEWER_THREADS,
            ),
        ),
    ),
    CauseRow(
        "compute",
        lambda s: s.part(s.device_busy_us) >= 0.5,
        lambda s: f"its device needs longer{_work(s)}",
        remedies=(
            COMPARE_HOSTS,
            remedy(
                "compare_devices",
                "Compare clocks, temperature and power of the device of {ranks} with its neighbours': rankscope exporter",
                WITHOUT % "the host or its GPU",
            ),
        ),
    ),
    CauseRow("compute", lambda s: s.part(s.cpu_us) >= 0.5, lambda s: f"its processor needs longer{_work(s)}"),
    CauseRow(
        "communication",
        lambda s: s.part(s.transfer_us) >= 0.5,
        "its collectives take longer than those of the others, without the waiting",
        noun="all ranks waited: communication, a stopped process, or a rank without records",
        remedies=(
            remedy(
                "links_of_host",
                "Check the NICs of {host}, their cables and switch ports for errors and lower rates: ibstat and ibdiagnet, "
                "ethtool -S, lspci -vv for their PCIe links, nvidia-smi nvlink -e, or the metrics of rankscope exporter",
                LINKS_ALONE,
                WITHOUT_HOST,
                OUT_OF_SERVICE,
                whole_host=True,
            ),
            remedy(
                "check_links",
                "Check the links of {ranks} for errors and lower rates: nvidia-smi nvlink -e, ibstat and ibdiagnet, or the "
                "NVLink and PCIe metrics of rankscope exporter",
                LINKS_ALONE,
                WITHOUT % "the host or its GPU",
            ),
        ),
    ),
    CauseRow(
        "host",
        lambda s: s.device_busy_us is not None and s.cpu_us is None and s.phase is None and "data" not in s.phases_us,
        "its device has no more to do than the others', so its host or its data loader is late",
        called="host or data loader",
        idles=True,
        remedies=(
            remedy(
                "stalls_of_host",
                "Find what differs on {host}: other processes (top, systemd-cgtop), the clock of its CPUs (cpupower "
                "frequency-info), memory, storage",
                DUMP % "the ranks of {host}{unseen}",
                "Look at {stalls_at} in the code: what does it wait for on {host} and not on the other hosts?",
                WITHOUT_HOST,
                whole_host=True,
            ),
            remedy(
                "stalls",
                DUMP % "{ranks}{unseen}",
                "Look at {stalls_at} in the code: what does it wait for on {ranks} and not on the others (storage, locks, a "
                "log, a sleep)?",
                RECORD_ALL,
            ),
        ),
    ),
    CauseRow(
        "host",
        lambda s: s.cpu_us is not None and s.run_queue_us is not None and not s.device_unseen,
        "for most of the delay its training thread waits or sleeps, and uses no CPU",
        idles=True,
    ),
    CauseRow(
        "host",
        lambda s: s.sleeps,
        "for most of the delay its training thread waits or sleeps, and uses no CPU, unlike those of the others",
        idles=True,
    ),
    CauseRow("host", lambda s: s.device_busy_us is not None, "its device is no slower, so its host code is late", idles=True),
    CauseRow("unknown", lambda _: True, "its own time is longer; no signal says why"),
)

IDLE_CAUSES: Final = frozenset(row.explained_by or row.cause for row in CAUSES if row.idles)
"""Causes in whose time the device has nothing to do."""
