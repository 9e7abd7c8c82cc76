"""Records of GPU state, and the protocols behind which real and simulated GPUs are interchangeable.

``Gpu`` is one GPU, queried inside its own process; ``Fleet`` is the daemon's view of all GPUs of the node.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

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
    "library_mismatch",
    "released",
    "stale",
    "nvml_error",
]


DEFECT: Final = "exporter_defect"
"""Reason of a metric or a file that could not be read by an error in the exporter itself."""


class SourceError(Exception):
    """A GPU or the driver cannot be queried; a later attempt may work. ``reason`` is a label value, the text is for a person.

    ``xids`` are events that no sample carries; often they are the cause.
    """

    def __init__(self, reason: DownReason, text: str) -> None:
        self.reason: DownReason = reason
        self.xids: tuple[XidEvent, ...] = ()
        super().__init__(text)


class GpuIdentity(msgspec.Struct, frozen=True):
    """Identity of a GPU. Only ``uuid`` is stable; ``serial`` and ``vbios_version`` are None if the board does not report them.

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

    ``labels`` are all labels except ``uuid``, in the catalogue's order. ``uuid`` is a MIG device's, or empty for the GPU itself.
    """

    metric: str
    value: float
    labels: Labels = ()
    uuid: str = ""


class Absent(msgspec.Struct, frozen=True, array_like=True):
    """A metric without a value on this GPU. ``reason`` is a lower-case NVML return code, or a word such as ``implausible``."""

    metric: str
    reason: str
    labels: Labels = ()


class GpuProcess(msgspec.Struct, frozen=True, array_like=True):
    """A process that has the GPU open. ``uuid`` is a MIG device's, or empty; ``used_bytes`` is None if the driver hides it.

    ``sm_ratio``: fraction of the last sampling period in which it had a kernel running; None if the driver does not report it.
    """

    pid: int
    kind: Literal["compute", "graphics", "mps"]
    used_bytes: int | None
    uuid: str = ""
    sm_ratio: float | None = None


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One series of a catalogue metric that does not come from a GPU's own process; ``labels`` is complete."""

    metric: str
    value: float
    labels: Labels = ()


class XidEvent(msgspec.Struct, frozen=True, array_like=True):
    """A critical Xid error that the driver reported as an NVML event."""

    unix_s: float
    xid: int


class CollectorRun(msgspec.Struct, frozen=True, array_like=True):
    """Result of a collector on one GPU in one pass; ``error`` is None on success (absent metrics are not an error)."""

    collector: str
    duration_s: float
    error: str | None


class MigDevice(msgspec.Struct, frozen=True, array_like=True):
    """A MIG device of a GPU; ``uuid`` is its own."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class GpuSample(msgspec.Struct, frozen=True):
    """One GPU in one pass.

    Attributes:
        monotonic_s: end of the pass on ``CLOCK_MONOTONIC``, which all processes of a machine share.
        processes: processes on the GPU; None if not queried.
        processes_s: time of ``processes`` on the same clock, possibly some seconds earlier; None if they are of this pass.
        readings: values; counters grow only within the lifetime of a GPU's process.
        xids: events since the previous sample.
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
    """One GPU, queried by the only thread of its own process. If the driver hangs, a call may take long or never return."""

    driver_version: str
    """Version of the driver that was opened; empty if unknown."""

    def open(self) -> GpuIdentity:
        """Initialize the driver's library and find the GPU by its PCI bus id; raises ``SourceError``."""
        ...

    def sample(self) -> GpuSample:
        """Read the values of the enabled collectors; raises ``SourceError`` if the GPU itself is lost."""
        ...

    def sample_activity(self) -> None:
        """Read the activity counters between two samples; raises ``SourceError``.

        Gives minimum and maximum activity within an interval; without it both equal the mean of the whole interval.
        """
        ...

    def close(self) -> None:
        """Release the driver."""
        ...


class Driver(msgspec.Struct, frozen=True):
    """Versions of the driver; empty if unknown."""

    driver_version: str
    nvml_version: str
    cuda_version: str


class GpuState(msgspec.Struct, frozen=True):
    """State of one GPU at one moment.

    ``sample`` is None unless it is fresh. A GPU that is not ``up`` has a ``reason``, a ``detail`` for a person, the unix time
    ``since_unix_s``, and, if the driver hangs, the NVML function ``call`` that did not return. ``identity`` is kept across
    restarts of the exporter.
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
    """State of all GPUs of the node at one moment.

    Attributes:
        gpus: identified GPUs, in the order of their index.
        driver: versions of the driver; None while unknown.
        counts: number of GPUs by source (``gpu_devices``); sources that cannot be read are left out.
        unidentified: number of GPUs that exist but whose identity was never read.
        stuck: number of killed processes that do not exit.
        nvswitches: number of NVSwitches; None if unknown.
        problem: why no GPU of the node can be queried; None if they can.
        driver_answers: the driver answered the last probe; None before the first. GPUs that are already open may still work if
            it did not.
        driver_problem: why the driver did not answer; ``driver_problem_reason`` is the label value.
        unidentified_gpus: PCI bus id, reason and detail of the ``unidentified`` GPUs whose bus id is known.
        inventory_durable: the known GPUs are saved on disk; None if none are saved.
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
    driver_problem_reason: DownReason | None = None
    unidentified_gpus: tuple[tuple[str, DownReason, str], ...] = ()
    inventory_durable: bool | None = None


class Fleet(Protocol):
    """All GPUs of the node. No method waits for a driver call. Methods are thread-safe."""

    simulated: bool

    def state(self) -> FleetState:
        """Return the state of all GPUs now."""
        ...

    def release(self, gpu: str, *, ttl_s: float) -> None:
        """End the process of a GPU (uuid, PCI bus id, index, or ``all``) and start no new one for ``ttl_s`` seconds.

        Raises:
            KeyError: there is no such GPU.
            TimeoutError: a process is stuck in the driver and does not exit; nothing is released.
        """
        ...

    def resume(self, gpu: str) -> None:
        """End a release early; raises ``KeyError``."""
        ...

    def start(self) -> None:
        """Start reading the GPUs."""
        ...

    def stop(self) -> None:
        """End all processes; those stuck in the driver are left behind."""
        ...
