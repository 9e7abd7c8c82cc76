"""Signals of a slow rank: its excess over its peers, per phase and per meter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.evidence.kernels.kernel_calls import CallComparison
from rankscope.analysis.result.analysis import RunsIn
from rankscope.analysis.result.cause import Cause
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
    loads_in: RunsIn | None = None
    """Where batches are loaded at the line with most of its extra time; ``None``: none are, or there is no such line."""
    loader_workers: int | None = None
    """Number of worker processes of its data loader; ``None``: unknown."""
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


HOST_OR_DEVICE: Final = ("device_busy_excess", "off_cpu_excess")
"""Evidence that tells whether the host or the device of a rank is late."""
