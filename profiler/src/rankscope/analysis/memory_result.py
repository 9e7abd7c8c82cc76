"""Memory of the ranks: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

from typing import Literal

import msgspec

MemoryKind = Literal["device", "host"]


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's memory changes over the steps: the Theil-Sen slope, and its 99 % interval for all ranks together."""

    rank: int
    kind: MemoryKind
    """``device``: what tensors hold at a step's end; ``host``: resident memory of the process."""
    samples: int
    bytes_per_1000_steps: float
    low_bytes_per_1000_steps: float
    high_bytes_per_1000_steps: float
    leaking: bool
    """It grows steadily and beyond chance, goes on to, and has grown by 1 % of what it was, and a MiB."""
    steps_until_full: int | None
    """At most so many more until the device is full; ``None`` for the host, without a leak, and where its size is not known."""


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One rank; ``None`` is what is not recorded, as everything of a device on CPU ranks."""

    rank: int
    samples: int
    allocated_bytes: int | None
    """Held by tensors at the end of a step; the last sample."""
    reserved_bytes: int | None
    """Held by the allocator; the highest sample."""
    peak_allocated_bytes: int | None
    device_bytes: int | None
    """Size of the device's memory, where hardware samples tell it."""
    peak_share: float | None
    """peak_allocated / device."""
    fragmentation: float | None
    """1 - peak_allocated / reserved: what the allocator holds though the ranks' tensors never needed it at one time; ``None``
    where the peak was reset and is above what is seen reserved."""
    resident_bytes: int | None
    """Of the process on the host; the last sample."""
    allocator_retries: int | None
    """Allocations so far that failed at first and made the allocator give back its cache."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of all ranks with samples."""

    ranks: list[RankMemory]
    growth: list[MemoryGrowth]
    """Of ranks with enough samples, fastest first."""
