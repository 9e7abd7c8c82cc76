"""Memory of the ranks: part of the JSON of ``rankscope analyze``."""

from __future__ import annotations

from typing import Literal

import msgspec

MemoryKind = Literal["device", "host"]


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one rank's memory over the steps: the Theil-Sen slope, and its 99 % interval for all ranks together."""

    rank: int
    kind: MemoryKind
    """``device``: memory held by tensors at a step's end; ``host``: resident memory of the process."""
    samples: int
    bytes_per_1000_steps: float
    low_bytes_per_1000_steps: float
    high_bytes_per_1000_steps: float
    leaking: bool
    """True if the memory grows steadily and beyond chance, still grows, and has grown by 1 % of its start value and by 1 MiB."""
    steps_until_full: int | None
    """Maximum number of steps until the device is full; ``None`` for the host, without a leak, or with unknown device size."""


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank; values that are not recorded are ``None``, such as those of a device on CPU ranks."""

    rank: int
    samples: int
    allocated_bytes: int | None
    """Held by tensors at the end of a step; the last sample."""
    reserved_bytes: int | None
    """Held by the allocator; the highest sample."""
    peak_allocated_bytes: int | None
    device_bytes: int | None
    """Size of the device's memory, where hardware samples report it."""
    peak_share: float | None
    """peak_allocated / device."""
    fragmentation: float | None
    """1 - peak_allocated / reserved: share of the allocator's memory that the rank's tensors never needed at one time; ``None``
    where the peak was reset and is above the highest reserved sample."""
    resident_bytes: int | None
    """Resident memory of the process on the host; the last sample."""
    allocator_retries: int | None
    """Number of allocations so far that failed at first and made the allocator release its cache."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of all ranks with samples."""

    ranks: list[RankMemory]
    growth: list[MemoryGrowth]
    """Growth of ranks with enough samples, fastest first."""
