"""Details of a window's time: the part of an analysis that needs traces.

Times are microseconds. ``busy`` is the length of a union: intervals that overlap count once. Fields that add up durations instead
have ``summed`` in their name. Values that are not in the trace are ``None``, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Direction = Literal["host to device", "device to host", "device to device", "peer to peer", "host to host", "fill", "unknown"]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """Partition of a window: compute + exposed_communication + exposed_memcpy + idle == window."""

    window_us: float
    compute_us: float
    communication_us: float
    overlap_us: float
    """Communication that compute hid."""
    exposed_communication_us: float
    memcpy_us: float
    exposed_memcpy_us: float
    """Copies that neither compute nor communication hid."""
    idle_us: float


class DevicePart(Partition, frozen=True, kw_only=True):
    """Partition of the window on one device."""

    device: int | None
    """Number of the device; ``None`` where it is not in the trace, and for work on the CPU."""


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a device: busy == overlapped + exposed."""

    device: int | None
    stream: int | None
    """Number of the stream; ``None`` where it is not in the trace."""
    kind: Literal["compute", "communication", "memcpy"]
    """Kind of work that took most of its time."""
    events: int
    busy_us: float
    overlapped_us: float
    """Part of ``busy_us`` in which another stream of the device was busy, too."""
    exposed_us: float
    """Part of ``busy_us`` in which no other stream of the device was busy."""
    compute_us: float
    communication_us: float
    memcpy_us: float


class ClassPart(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels (on a CPU: operators) of one class, over all streams. Several classes may run at the same time."""

    name: str
    """``communication``, a class of ``analysis/trace/kernels.py``, or ``other``."""
    events: int
    busy_us: float
    summed_us: float
    """Sum of durations: more than ``busy_us`` where kernels of the class ran side by side."""
    overlapped_us: float
    """Part of ``busy_us`` under communication; for the class ``communication``, the part under compute."""


class NamedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one name without a class, off the main compute stream: perhaps communication of an unknown library."""

    name: str
    stream: int | None
    events: int
    busy_us: float
    longest_us: float


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """Forward operators that ran inside backward: activation checkpointing."""

    operators: int
    """Number of outermost forward operators inside backward operators that launched any of these events."""
    events: int
    """Number of kernels and copies that they launched; on a CPU, of operators."""
    busy_us: float
    compute_share: float | None
    """Compute among these events over all compute of the window."""


class QueueDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Delay from the start of the launching call to the start on the device. For a device graph, only its first event counts."""

    kind: Literal["compute", "communication", "memcpy"]
    events: int
    median_us: float
    p90_us: float
    longest_us: float


class LaunchPart(msgspec.Struct, frozen=True, kw_only=True):
    """Launches of work on the device, and the reasons for which the device was idle.

    queued + launching + starved + unknown == idle.
    """

    events: int
    """Number of kernels and copies."""
    linked: int
    """Number of kernels and copies whose launching call is in the trace."""
    calls: int
    """Number of launching calls that are linked to any of them."""
    idle_queued_us: float
    """Idle although work had been launched: the work waited for other work, for an event, or for the device to start it."""
    idle_launching_us: float
    """Idle while a call was launching the work that ran next, or later work."""
    idle_starved_us: float
    """Idle because nothing had been launched: the host was late."""
    idle_unknown_us: float
    """Idle before work whose launching call is not in the trace."""
    queue_delay: list[QueueDelay]
    started_early: int
    """Number of events that start before their launching call, because the host's and device's clocks differ. Counted as no
    delay."""
    graph_launches: int
    """Number of launches of device graphs: calls that started several events, or that are named as graph launches."""
    graph_events: int
    """Number of kernels and copies of device graphs. One call launches all of them, so the origin of each is not known."""


class CopyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Copies and fills of one direction between two kinds of memory."""

    direction: Direction
    memory: str | None
    """Kinds of memory as the profiler names them: ``Pageable -> Device``."""
    events: int
    busy_us: float
    exposed_us: float
    """Part of ``busy_us`` under neither compute nor communication."""
    bytes: int | None
    """Sum over the events whose size is in the trace; ``None`` where there are none."""
    sized_events: int
    bytes_per_second: float | None
    """``bytes`` over the time in which any of the sized events ran."""
    collective: bool
    """True if the copies carry a collective (copy engines): they are part of communication, not of the window's copies."""


class SlowedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Compute kernels of one name, grid and place between other kernels, some under communication, some not."""

    name: str
    overlapped: int
    alone: int
    overlapped_median_us: float
    alone_median_us: float
    ratio: float


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Compute under communication, compared with the same kernels alone."""

    slowdown: float | None
    """Medians under communication over medians alone, weighted by the time alone; ``None`` without enough samples."""
    extra_us: float | None
    """Time that the overlapped kernels took beyond their medians alone, summed over kernels."""
    compared: int
    """Number of overlapped kernels that could be compared: with enough samples on both sides, and steady when alone."""
    overlapped: int
    """Number of all kernels that ran under communication for at least half of their time."""
    costliest: list[SlowedKernel]


class CommunicationPart(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank, that of matched collectives as transfer and wait, each under compute or not.

    The transfer is the last part of a collective, as long as its shortest duration over the ranks. The wait is the part before
    it. Time in which one collective waits and another transfers counts as transfer. Transfer, wait and unmatched communication
    add up to the rank's communication.
    """

    transfer_overlap_us: float
    transfer_exposed_us: float
    wait_overlap_us: float
    wait_exposed_us: float
    unmatched_overlap_us: float | None
    """Communication outside matched collectives. ``None`` for captured steps of a run: collectives extend beyond these steps."""
    unmatched_exposed_us: float | None


class WindowDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All details of one window."""

    step: int | None
    """``None``: the whole file."""
    start_unix_ns: int
    window_us: float
    devices: list[DevicePart]
    streams: list[StreamPart]
    """Busiest first."""
    classes: list[ClassPart]
    """Busiest first."""
    unclassified: list[NamedKernel]
    recompute: Recompute | None
    """``None``: the trace has no operators with autograd's numbers, or none is linked to the work it launched, as in a trace of
    device activities alone."""
    launch: LaunchPart | None
    """``None``: no launching call is in the trace, or nothing ran on a device."""
    copies: list[CopyPart]
    """Copies that start in the window, whole; longest first."""
    contention: Contention | None
    """Contention of compute kernels that start in the window; ``None`` without communication on a device."""


class RankDetail(WindowDetail, frozen=True, kw_only=True):
    """Details of a rank's whole file, and of its annotated steps one by one."""

    steps: list[WindowDetail]
    """Windows of ``window_basis: steps``; the first 64."""
