"""Cause of a rank's slowness: its excess over its peers, per phase and per signal, looked up in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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
    alone: frozenset[Cause] = frozenset()
    """Activities that most of its slow steps are tagged with, and those of its peers are not."""
    longer: frozenset[Cause] = frozenset()
    """Activities that most of its slow steps are tagged with, those of its peers, too, and its other steps are not."""
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
    """Wording for people: the end of "Rank 2 makes the others wait: …"."""
    called: str = ""
    """Name of the cause for people, where it may be more than ``cause``."""


HOST_OR_DEVICE: Final = ("device_busy_excess", "off_cpu_excess")
"""Evidence that tells whether the host or the device of a rank is late."""

_BOTH: Final[frozenset[Cause]] = frozenset({"checkpoint", "evaluation"})
_EITHER: Final = "checkpoint or evaluation"

CAUSE_RULES: Final[tuple[CauseRule, ...]] = (
    CauseRule("gc", None, lambda s: s.part(s.gc_us) >= 0.5, "it stops for Python's garbage collection"),
    CauseRule("checkpoint", None, lambda s: s.alone >= _BOTH, "it alone writes checkpoints and evaluates", _EITHER),
    CauseRule("checkpoint", None, lambda s: "checkpoint" in s.alone, "it alone writes checkpoints"),
    CauseRule("evaluation", None, lambda s: "evaluation" in s.alone, "it alone evaluates"),
    CauseRule(
        "checkpoint",
        None,
        lambda s: s.longer >= _BOTH and _may_be_between(s),
        "its checkpoints or evaluations take longer than the others'",
        _EITHER,
    ),
    CauseRule(
        "checkpoint",
        None,
        lambda s: "checkpoint" in s.longer and _may_be_between(s),
        "its checkpoints take longer than the others'",
    ),
    CauseRule(
        "evaluation",
        None,
        lambda s: "evaluation" in s.longer and _may_be_between(s),
        "its evaluation takes longer than the others'",
    ),
    CauseRule(
        "imbalance",
        "enlarged_batches",
        lambda s: _has_more_work(s) and s.loaded_work is not None and s.loaded_work < (s.work or 0) / 2,
        "its script makes the batches larger after the loader, so its model is given more than the others'",
    ),
    CauseRule("imbalance", None, lambda s: _has_more_work(s), "it is given more work than the others"),  # noqa: PLW0108  # defined below
    CauseRule("input", None, lambda s: s.phase in ("data", "h2d"), "its data loader is slow"),
    CauseRule("compute", None, lambda s: s.part(s.device_busy_us) >= 0.5, "its device needs longer for the same work"),
    CauseRule(
        "compute", "cpu_contention", lambda s: s.part(s.run_queue_us) >= 0.5, "it waits for a CPU that something else uses"
    ),
    CauseRule("compute", None, lambda s: s.part(s.cpu_us) >= 0.5, "its processor needs longer for the same work"),
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


def _may_be_between(signals: Signals) -> bool:
    # Evaluations and checkpoints that the recorder detects are between steps; those that only the script tags may lie in forward.
    return signals.phase in (None, "between_steps", "forward")


def _has_more_work(signals: Signals) -> bool:
    measured = not signals.device_unseen and (signals.cpu_us is not None or signals.device_busy_us is not None)
    return (signals.work or 0) >= 0.1 and signals.phase != "data" and (_uses_processor(signals) or not measured)


def _uses_processor(signals: Signals) -> bool:
    # Where CPUs are short, a rank that needs more CPU time also queues longer for it: their sum is the cost of the work.
    cpu, queue = signals.part(signals.cpu_us), signals.part(signals.run_queue_us)
    return (cpu >= 0.15 and cpu + max(queue, 0.0) >= 0.4) or signals.part(signals.device_busy_us) >= 0.3


def cause_of(signals: Signals) -> CauseRule:
    """Return the first row that applies."""
    return next(row for row in CAUSE_RULES if row.applies(signals))
