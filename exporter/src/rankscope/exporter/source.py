"""What the exporter wants to know about the GPUs of this node, and the seams through which it asks.

``Gpu`` is one GPU asked from inside its own process; ``Fleet`` is what the daemon knows of all of them at a moment.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Labels = tuple[tuple[str, str], ...]

DownReason = Literal[
    "starting",
    "lost",
    "hung",
    "stuck",
    "died",
    "missing",
    "not_in_driver",
    "no_driver",
    "released",
    "stale",
    "nvml_error",
]


class SourceError(Exception):
    """A GPU, or the driver, cannot be asked; asking again later may work. ``reason`` is for a label, the text for a person.

    ``xids`` are those heard of until then that no sample carries: often they say why.
    """

    def __init__(self, reason: DownReason, text: str) -> None:
        self.reason: DownReason = reason
        self.xids: tuple[XidEvent, ...] = ()
        super().__init__(text)


class GpuIdentity(msgspec.Struct, frozen=True):
    """Who a GPU is. Only ``uuid`` is stable; ``serial`` and ``vbios_version`` are None where the board does not say.

    ``pci_bus_id`` is lower-case and has eight digits of domain: ``00000000:1a:00.0``.
    """

    uuid: str
    index: int
    model: str
    pci_bus_id: str
    serial: str | None = None
    vbios_version: str | None = None


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric of the catalogue, in the metric's unit.

    ``labels`` are those besides ``uuid``, in the catalogue's order; ``uuid`` is a MIG device's, or empty for the GPU itself.
    """

    metric: str
    value: float
    labels: Labels = ()
    uuid: str = ""


class Absent(msgspec.Struct, frozen=True, array_like=True):
    """A metric this GPU did not give, and why: a lower-case NVML return code, ``implausible``, ``before_hopper`` and the like."""

    metric: str
    reason: str
    labels: Labels = ()


class GpuProcess(msgspec.Struct, frozen=True, array_like=True):
    """A process that has the GPU open. ``uuid`` is the MIG device's, or empty; ``used_bytes`` None where the driver hides it."""

    pid: int
    kind: Literal["compute", "graphics", "mps"]
    used_bytes: int | None
    uuid: str = ""


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One series of a metric of the catalogue that does not come from a GPU's own process; ``labels`` are all of them."""

    metric: str
    value: float
    labels: Labels = ()


class XidEvent(msgspec.Struct, frozen=True, array_like=True):
    """A critical Xid error the driver reported while somebody listened."""

    unix_s: float
    xid: int


class CollectorRun(msgspec.Struct, frozen=True, array_like=True):
    """How a collector did on one GPU in one pass; ``error`` is None when it did well (absent metrics are no error)."""

    collector: str
    duration_s: float
    error: str | None


class MigDevice(msgspec.Struct, frozen=True, array_like=True):
    """A MIG device of a GPU, by its own uuid."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class GpuSample(msgspec.Struct, frozen=True):
    """One GPU in one pass.

    ``monotonic_s`` is when the pass ended, on the clock all processes of a machine share. ``processes`` is None when not asked,
    and as they were at ``processes_s`` on that clock, which may be some seconds before (None: in this pass). Counters only grow
    while a process lives; ``xids`` are those since the previous sample.
    """

    identity: GpuIdentity
    unix_s: float
    monotonic_s: float
    readings: tuple[Reading, ...] = ()
    absent: tuple[Absent, ...] = ()
    runs: tuple[CollectorRun, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    processes_s: float | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    xids: tuple[XidEvent, ...] = ()


class Gpu(Protocol):
    """One GPU, asked by the one thread of its own process. Any call may take long, or never return, when the driver hangs."""

    def open(self) -> GpuIdentity:
        """Start the driver's library and find the GPU by its PCI bus id; raises ``SourceError``."""
        ...

    def sample(self) -> GpuSample:
        """Ask what the enabled collectors need; raises ``SourceError`` when the GPU itself is gone."""
        ...

    def part(self) -> None:
        """Look at what only adjacent looks can tell, a few times between two samples; raises ``SourceError``.

        Least and greatest activity within an interval come from here; without it they are those of the whole interval.
        """
        ...

    def close(self) -> None:
        """Release the driver."""
        ...


class Driver(msgspec.Struct, frozen=True):
    """Versions of the driver; empty where it did not say."""

    driver_version: str
    nvml_version: str
    cuda_version: str


class GpuState(msgspec.Struct, frozen=True):
    """What is known of one GPU at this moment.

    ``sample`` is None unless it is fresh. A GPU that is not ``up`` has a ``reason``, ``detail`` for a person, the unix time
    ``since_unix_s``, and, when the driver hangs, the NVML function ``call`` that did not return. ``identity``
    outlives everything, the exporter included.
    """

    identity: GpuIdentity
    up: bool
    sample: GpuSample | None = None
    age_s: float | None = None
    reason: DownReason | None = None
    detail: str = ""
    call: str = ""
    since_unix_s: float | None = None
    restarts: int = 0


class FleetState(msgspec.Struct, frozen=True):
    """All GPUs of the node at this moment, in the order of their index.

    ``counts`` are the GPUs by who counts them (``gpu_devices``), those left out that cannot be asked. ``unidentified`` exist but
    never said who they are. ``problem`` says why the node as a whole cannot be asked, None when it can.

    ``driver_answers``: whether the driver as a whole did when it was asked last, which GPUs that were opened before may not
    notice; None before. ``driver_problem`` says why not. ``unidentified_gpus`` are, of the ``unidentified``, those whose place is
    known: PCI bus id, reason, and detail for a person. ``inventory_durable``: whether what is remembered is on the disk; None
    where nothing is.
    """

    gpus: tuple[GpuState, ...]
    driver: Driver | None
    counts: dict[str, int]
    unidentified: int
    stuck: int
    nvswitches: int | None
    problem: str | None
    driver_answers: bool | None = None
    driver_problem: str | None = None
    unidentified_gpus: tuple[tuple[str, DownReason, str], ...] = ()
    inventory_durable: bool | None = None


class Fleet(Protocol):
    """All GPUs of the node. No method waits for a driver; any thread may call."""

    simulated: bool

    def state(self) -> FleetState:
        """Everything, now."""
        ...

    def release(self, gpu: str, *, ttl_s: float) -> None:
        """End the process of a GPU (uuid, PCI bus id, index, or ``all``) and leave the GPU alone for a while.

        Raises:
            KeyError: there is no such GPU.
            TimeoutError: its process is stuck in the driver and does not die; then nothing is released.
        """
        ...

    def resume(self, gpu: str) -> None:
        """End a release early; raises ``KeyError``."""
        ...

    def start(self) -> None:
        """Begin to ask."""
        ...

    def stop(self) -> None:
        """End all processes; those stuck in the driver are left behind."""
        ...
