"""Faults of one rank whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one rank, and what a right answer says."""

    name: str
    cause: str | None
    """Cause of the verdict; ``None`` where no rank is at fault."""
    kernel: Callable[[int, str], float] = lambda _step, _name: 1.0
    """Function from step and kernel to the factor by which the kernel takes longer."""
    launching: float = 0.0
    """Time that the host takes longer for all launches of a step, as a multiple of the step without a fault."""
    data_us: Callable[[int], float] = lambda _step: 0.0
    """Function from step to the host's extra time in the data loader."""
    host_us: Callable[[int], float] = lambda _step: 0.0
    """Function from step to the host's extra time in the forward pass."""
    host_note: str = ""
    """Annotation of that time."""
    optimizer_us: Callable[[int], float] = lambda _step: 0.0
    """Function from step to the host's extra time in the optimizer."""
    saving_us: Callable[[int], float] = lambda _step: 0.0
    """Function from step to the host's time for a checkpoint at the end of the step."""
    work: float = 1.0
    """Factor by which a rank has more tokens than the others."""
    link: float = 1.0
    """Factor by which transfers of the rank's groups take longer."""


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("none", None),
        Fault("slow device", "compute", kernel=lambda _step, _name: 1.3),
        Fault("one slow kernel", "compute", kernel=lambda _step, name: 1.6 if "mlp" in name else 1.0),
        Fault("slow in bursts", "compute", kernel=lambda step, _name: 1.6 if step // 3 % 2 else 1.0),
        Fault("slow host", "host", launching=1.25),
        Fault("pause of the host", "host", host_us=lambda _step: 12_000.0),
        Fault("late input", "input", data_us=lambda _step: 12_000.0),
        Fault("more tokens", "imbalance", work=1.4),
        Fault("checkpoint of one rank", "checkpoint", saving_us=lambda step: 60_000.0 * (step % 4 == 2)),
        Fault("garbage collection", "gc", host_us=lambda step: 40_000.0 * (step % 3 == 1), host_note="Python GC"),
        Fault("slow optimizer", "host", optimizer_us=lambda _step: 60_000.0),
        Fault("slow link", None, link=3.0),
        Fault("one hiccup", None, host_us=lambda step: 60_000.0 * (step == 4)),
        Fault("pause of some steps", "host", host_us=lambda step: 60_000.0 * (step % 4 == 2)),
        Fault("3 % slower", None, kernel=lambda _step, _name: 1.03),
    )
}
