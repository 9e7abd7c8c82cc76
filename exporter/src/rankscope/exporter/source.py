"""What the exporter wants to know about the GPUs of this node, and the one seam through which it asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Labels = tuple[tuple[str, str], ...]


class SourceError(Exception):
    """No sample of any GPU could be taken; the message says why and what to do. Asking again later may work."""


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Who a GPU is. Only ``uuid`` is stable; ``serial`` is None where the board has none."""

    uuid: str
    index: int
    model: str
    pci_bus_id: str
    serial: str | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a metric of the catalogue, in the metric's unit; ``labels`` are those besides ``uuid``."""

    metric: str
    value: float
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """A metric this GPU did not give, and the reason: a lower-case NVML return code, or ``implausible``."""

    metric: str
    reason: str
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU in one pass; a GPU that is not ``up`` has no readings, and ``reason`` says what happened."""

    identity: GpuIdentity
    up: bool
    readings: tuple[Reading, ...] = ()
    absent: tuple[Absent, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NodeSample:
    """All GPUs of the node in one pass, those included that answered earlier and are gone now.

    ``unidentified`` counts GPUs that exist but never said who they are.
    """

    driver_version: str
    gpus: tuple[GpuSample, ...]
    unidentified: int = 0


class GpuSource(Protocol):
    """Where samples come from. One thread calls ``sample``; any thread may read the two attributes."""

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are invented."""
        ...

    @property
    def doing(self) -> str:
        """What the present pass is busy with, for a person who wonders why it hangs."""
        ...

    def sample(self) -> NodeSample:
        """Ask every GPU now. Raises ``SourceError``; may take long, or never return, when the driver hangs."""
        ...

    def close(self) -> None:
        """Release the driver."""
        ...
