"""Cause of a rank's slowness: its excess over its peers, per phase and per signal, looked up in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from rankscope.analysis.evidence.device_times import MORE_WORK
from rankscope.analysis.evidence.kernel_calls import CallComparison
from rankscope.analysis.result.analysis import Cause
from rankscope.runs.records import Phase


@dataclass(frozen=True, slots=True)
class Signals:
    """Signals of a slow rank in its slow steps: mean excess over the median of its peers. ``None``: no signal."""

    own_us: float
    phases_us: dict[Phase, float] = field(default_factory=dict)
    host_us: float | None = None
    """Time of the step on the host; ``None`` also with fewer than two peers, of which one may use the CPU for something else."""
    cpu_us: float | None = None
    run_queue_us: float | None = None
    gc_us: float | None = None
    work: float | None = None
    """Relative excess of its work, where it enters the model if that is known, else as loaded: 0.5 means 50 % more."""
    loaded_work: float | None = None
    """The same of the work as loaded (input elements, else samples); ``None`` also if it is unknown where it enters the model."""
    activities_us: dict[Cause, float] = field(default_factory=dict)
    """Time in checkpoints and evaluations."""
    alone: frozenset[Cause] = frozenset()
    """Those of ``activities_us`` that its peers do not do, or hardly."""
    profiler_us: float = 0.0
    """Part of the excess that comes with the script's own profiler, which is on here and not on its peers."""
    calls: CallComparison | None = None
    """Calls of its kernels or operators in profiled steps; ``None``: unknown."""
    same_calls: bool = False
    """True if its kernels were launched as often and as large as its peers'."""
    other_line: bool = False
    """True if the line with most of its extra time is one that its peers never reach."""
    device_busy_us: float | None = None
    """Compute and copies per step on the accelerator, from profiled windows."""
    device_unseen: bool = False
    """True if it trains on an accelerator and no profiled window shows it: a host that uses no CPU may wait for its device."""
    transfer_us: float | None = None
    """Time in which collectives transfer, without waiting."""
    agreement: float | None = None
    """Share of bootstrap samples of the slow steps that give the same cause; ``None``: not from steps."""

    @property
    def off_cpu_us(self) -> float | None:
        """Time in which the training thread neither runs nor waits for a CPU: it sleeps, or waits for a file or lock."""
        if self.host_us is None or self.cpu_us is None or self.run_queue_us is None:
            return None
        return self.host_us - self.cpu_us - self.run_queue_us

    @property
    def sleeps(self) -> bool:
        """Whether most of the excess is ``off_cpu_us``: then the host is late, not its device.

        By default a thread that waits for a device uses the CPU. The threads of the peers do so while they wait for this rank. If
        waiting uses no CPU, the peers use none either, and there is no excess.
        """
        return self.part(self.off_cpu_us) >= 0.5

    @property
    def phase(self) -> Phase | None:
        """Phase with most of the excess, if it has at least 40 % of it; else ``None``."""
        if not self.phases_us or self.own_us <= 0:
            return None
        phase = max(self.phases_us, key=lambda name: self.phases_us[name])
        return phase if self.phases_us[phase] >= 0.4 * self.own_us else None

    def part(self, value: float | None) -> float:
        """Return a signal as a share of the excess; 0 without a signal."""
        return 0.0 if value is None or self.own_us <= 0 else value / self.own_us


@dataclass(frozen=True, slots=True)
class CauseRule:
    """Row of the table of causes; the first row that applies gives the cause."""

    cause: Cause
    explained_by: str | None
    applies: Callable[[Signals], bool]
    says: str
    """Wording for people: the end of "Rank 2 makes the others wait: …". In the table, ``{work}`` stands for what is known of the
    rank's work, and ``{calls}`` for its calls."""
    called: str = ""
    """Name of the cause for people, where it may be more than ``cause``."""


HOST_OR_DEVICE: Final = ("device_busy_excess", "off_cpu_excess")
"""Evidence that tells whether the host or the device of a rank is late."""

_EITHER: Final = "checkpoint or evaluation"


def _for_activity(cause: Cause, alone: str, longer: str) -> tuple[CauseRule, CauseRule]:
    """Return the rows of an activity, for a rank that does it alone and for one that takes longer for it."""

    def holds(signals: Signals) -> bool:
        return signals.part(signals.activities_us.get(cause)) >= 0.5

    return (
        CauseRule(cause, None, lambda signals: holds(signals) and cause in signals.alone, alone),
        CauseRule(cause, None, holds, longer),
    )


CAUSE_RULES: Final[tuple[CauseRule, ...]] = (
    CauseRule("gc", None, lambda s: s.part(s.gc_us) >= 0.5, "it stops for Python's garbage collection"),
    CauseRule(
        "checkpoint",
        None,
        lambda s: _is_either(s) and len(s.alone) > 1,
        "it alone writes checkpoints and evaluates",
        _EITHER,
    ),
    CauseRule(
        "checkpoint",
        None,
        lambda s: _is_either(s),  # noqa: PLW0108  # defined below
        "its checkpoints or evaluations take longer than the others'",
        _EITHER,
    ),
    *_for_activity("checkpoint", "it alone writes checkpoints", "its checkpoints take longer than the others'"),
    *_for_activity("evaluation", "it alone evaluates", "its evaluation takes longer than the others'"),
    CauseRule(
        "imbalance",
        "enlarged_batches",
        lambda s: _has_more_work(s) and s.loaded_work is not None and s.loaded_work < (s.work or 0) / 2,
        "its script makes the batches larger after the loader, so its model is given more than the others'",
    ),
    CauseRule("imbalance", None, lambda s: _has_more_work(s), "it is given more work than the others"),  # noqa: PLW0108  # defined below
    CauseRule("input", None, lambda s: s.phase in ("data", "h2d"), "its data loader is slow"),
    CauseRule("host", "profiler", lambda s: _is_profiler(s), "the script's own profiler runs on it"),  # noqa: PLW0108  # as above
    CauseRule(
        "imbalance",
        "more_calls",
        lambda s: s.calls is not None and s.calls.is_more_work and _is_computed(s, s.calls.excess_us),
        "it does more work than the others: {calls}",
    ),
    CauseRule(
        "imbalance",
        "other_code",
        lambda s: s.other_line and _uses_processor(s),
        "it runs code that the others never reach",
    ),
    CauseRule("compute", None, lambda s: s.part(s.device_busy_us) >= 0.5, "its device needs longer{work}"),
    CauseRule(
        "compute", "cpu_contention", lambda s: s.part(s.run_queue_us) >= 0.5, "it waits for a CPU that something else uses"
    ),
    CauseRule("compute", None, lambda s: s.part(s.cpu_us) >= 0.5, "its processor needs longer{work}"),
    CauseRule(
        "communication",
        None,
        lambda s: s.part(s.transfer_us) >= 0.5,
        "its collectives take longer than those of the others, without the waiting",
    ),
    CauseRule(
        "host",
        None,
        lambda s: s.device_busy_us is not None and s.cpu_us is None and s.phase is None and "data" not in s.phases_us,
        "its device has no more to do than the others', so its host or its data loader is late",
        "host or data loader",
    ),
    CauseRule(
        "host",
        None,
        lambda s: s.cpu_us is not None and s.run_queue_us is not None and not s.device_unseen,
        "for most of the delay its training thread waits or sleeps, and uses no CPU",
    ),
    CauseRule(
        "host",
        None,
        lambda s: s.sleeps,
        "for most of the delay its training thread waits or sleeps, and uses no CPU, unlike those of the others",
    ),
    CauseRule(
        "host",
        None,
        lambda s: s.device_busy_us is not None,
        "its device is no slower, so its host code is late",
    ),
    CauseRule("unknown", None, lambda _: True, "its own time is longer; no signal says why"),
)


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


def rule_of(signals: Signals) -> CauseRule:
    """Return the first row of the table that applies."""
    return next(row for row in CAUSE_RULES if row.applies(signals))


def cause_of(signals: Signals) -> CauseRule:
    """Return the first row that applies, with its wording filled in."""
    row = rule_of(signals)
    calls = "" if signals.calls is None else signals.calls.described
    return replace(row, says=row.says.format(work=_work(signals), calls=calls))


def _work(signals: Signals) -> str:
    """Return for which work a rank needs longer, as far as it was counted."""
    calls = signals.calls
    counted = signals.same_calls or (calls is not None and calls.is_same_work and _is_computed(signals, calls.excess_us))
    same_size = signals.work is not None and abs(signals.work) < MORE_WORK
    if counted:
        return " for the same work" if same_size else " for as many calls"
    return " for inputs of the same size" if same_size else ""
