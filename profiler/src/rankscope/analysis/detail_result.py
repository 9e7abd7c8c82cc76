"""Where the time of a window went, in detail: the part of an analysis that only traces can tell.

Times are microseconds. ``busy`` is the length of a union: intervals that overlap count once. Where durations are added up instead
the field's name says ``summed``. What a trace does not tell is ``None``, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Direction = Literal["host to device", "device to host", "device to device", "peer to peer", "host to host", "fill", "unknown"]


class DevicePart(msgspec.Struct, frozen=True, kw_only=True):
    """The partition of the window on one device: compute + exposed_communication + exposed_memcpy + idle == window."""

    device: int | None
    """Number of the device; ``None`` where the trace does not say, and for work on the CPU."""
    window_us: float
    compute_us: float
    communication_us: float
    overlap_us: float
    exposed_communication_us: float
    memcpy_us: float
    exposed_memcpy_us: float
    idle_us: float


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a device: busy == overlapped + exposed."""

    device: int | None
    stream: int | None
    """Number of the stream; ``None`` where the trace does not say."""
    kind: Literal["compute", "communication", "memcpy"]
    """What it did for the longest time."""
    events: int
    busy_us: float
    overlapped_us: float
    """Of ``busy_us``, the part in which another stream of the device was busy, too."""
    exposed_us: float
    """Of ``busy_us``, the part in which no other stream of the device was."""
    compute_us: float
    communication_us: float
    memcpy_us: float


class ClassPart(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels (on a CPU: operators) of one class, over all streams. Classes may run at the same time as others."""

    name: str
    """``communication``, a class of ``analysis/kernel_classes.py``, or ``other``."""
    events: int
    busy_us: float
    summed_us: float
    """Sum of durations: more than ``busy_us`` where kernels of the class ran side by side."""
    overlapped_us: float
    """Of ``busy_us``, under communication; for communication, under compute."""


class NamedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one name that no class knows, off the main compute stream: perhaps communication of an unknown library."""

    name: str
    stream: int | None
    events: int
    busy_us: float
    longest_us: float


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """Forward operators that ran inside backward: activation checkpointing."""

    operators: int
    """Outermost forward operators inside backward operators that launched any of these events."""
    events: int
    """Kernels and copies that they launched; on a CPU, operators."""
    busy_us: float
    compute_share: float | None
    """Compute among them over all compute of the window."""


class QueueDelay(msgspec.Struct, frozen=True, kw_only=True):
    """From the start of the launching call to the start on the device. Of a device graph only its first event counts."""

    kind: Literal["compute", "communication", "memcpy"]
    events: int
    median_us: float
    p90_us: float
    longest_us: float


class LaunchPart(msgspec.Struct, frozen=True, kw_only=True):
    """How work got to the device, and what the device was idle for.

    queued + launching + starved + unknown == idle.
    """

    events: int
    """Kernels and copies."""
    linked: int
    """Those whose launching call is in the trace."""
    calls: int
    """Launching calls that are linked to any of them."""
    idle_queued_us: float
    """Idle though work had been launched: it waited for other work, an event, or for the device to take it up."""
    idle_launching_us: float
    """Idle while a call was launching what ran next, or something later."""
    idle_starved_us: float
    """Idle as nothing had been launched: the host came too late."""
    idle_unknown_us: float
    """Idle before work whose launching call is not in the trace."""
    queue_delay: list[QueueDelay]
    started_early: int
    """Events that seem to start before their launching call: the clocks of host and device disagree. Counted as no delay."""
    graph_launches: int
    """Launches of device graphs: calls that started several events, or say so."""
    graph_events: int
    """Kernels and copies of device graphs. One call launches all of them, so nothing is known of who asked for each."""


class CopyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Copies and fills of one direction between two kinds of memory."""

    direction: Direction
    memory: str | None
    """Kinds of memory as the profiler names them: ``Pageable -> Device``."""
    events: int
    busy_us: float
    exposed_us: float
    """Of ``busy_us``, under neither compute nor communication."""
    bytes: int | None
    """Sum over the events that say how much they move; ``None`` where none does."""
    sized_events: int
    bytes_per_second: float | None
    """``bytes`` over the time in which any of the sized events ran."""
    collective: bool
    """Carries a collective (copy engines): part of communication, not of the copies of the window."""


class SlowedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Compute kernels of one name, grid and place between others, some under communication, some not."""

    name: str
    overlapped: int
    alone: int
    overlapped_median_us: float
    alone_median_us: float
    ratio: float


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Compute under communication against the same kernels alone."""

    slowdown: float | None
    """Medians under communication over medians alone, weighted by the time alone; ``None`` without enough samples."""
    extra_us: float | None
    """What the overlapped kernels took beyond their medians alone. A sum over kernels."""
    compared: int
    """Overlapped kernels that could be compared: enough of the same on both sides, and steady when alone."""
    overlapped: int
    """All kernels that ran under communication for at least half of their time."""
    costliest: list[SlowedKernel]


class CommunicationPart(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of matched collectives as transferring and waiting, each under compute or not.

    Transferring is the end of a collective, for its shortest duration over the ranks; waiting is what lies before it. Where one
    collective waits while another transfers, it is transferring. All three add up to the rank's communication.
    """

    transfer_overlap_us: float
    transfer_exposed_us: float
    wait_overlap_us: float
    wait_exposed_us: float
    unmatched_overlap_us: float | None
    """Communication outside matched collectives. ``None`` for captured steps of a run, whose collectives reach beyond them."""
    unmatched_exposed_us: float | None


class WindowDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one window."""

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
    """``None``: the trace has no operators with autograd's numbers, or none is linked to what it launched, as in one of device
    activities alone."""
    launch: LaunchPart | None
    """``None``: no launching call is in the trace, or nothing ran on a device."""
    copies: list[CopyPart]
    """Copies that start in the window, whole; longest first."""
    contention: Contention | None
    """Of compute kernels that start in the window; ``None`` without communication on a device."""


class RankDetail(WindowDetail, frozen=True, kw_only=True):
    """The whole file of a rank, and its annotated steps one by one."""

    steps: list[WindowDetail]
    """Windows as ``window_basis: steps`` has them; the first 64."""
