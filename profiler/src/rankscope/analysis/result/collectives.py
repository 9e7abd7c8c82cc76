"""Results about collectives: bandwidths, waits in sends and operations with a root, and clock offsets."""

from __future__ import annotations

from typing import Literal

import msgspec


class CollectiveBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one operation, process group and size. GB are 1e9 bytes.

    Times and bandwidths are those of the transfer, after the last rank arrived, without the waiting before it. Each is the value
    of one instance: the median over the matched instances, or their 10th and 90th percentiles (``p10``, ``p90``).
    """

    op: str
    group: str
    group_size: int | None
    """Number of ranks in the group."""
    size_bucket_bytes: int | None
    """Instances are at least this large and less than twice as large; ``None``: their sizes are not known."""
    bytes: int | None
    """Median size of an instance: that of the whole array, the larger of a rank's input and output."""
    count: int
    """Number of instances seen on any rank."""
    matched: int
    """Number of instances whose transfer is known. All figures but ``bus_at_least_gb_s`` are computed from these."""
    transfer_us: float | None
    transfer_p10_us: float | None
    transfer_p90_us: float | None
    wait_us: float | None
    """Mean wait of a rank per instance."""
    algorithm_gb_s: float | None
    """Size over transfer time."""
    bus_gb_s: float | None
    """Rate on each link: algorithm bandwidth times the operation's factor."""
    bus_p10_gb_s: float | None
    bus_p90_gb_s: float | None
    bus_at_least_gb_s: float | None
    """Lower bound of the bus bandwidth: all time inside counts as transfer. Known also without the other ranks' records."""
    link: str | None
    """Link that carries it (a name of ``analysis/collectives/traffic/links.py``)."""
    link_source: Literal["gpu_name", "told"] | None
    expected_gb_s: float | None
    """Bare rate of that link for this operation; ``None``: not known, ``expected_unknown`` has the reason."""
    expected_unknown: str | None
    share: float | None
    """``bus_gb_s`` over ``expected_gb_s``; more than 1 where switches reduce or multicast in the network."""
    bound_by: Literal["bandwidth", "latency"] | None
    """``latency``: the expected transfer is so short that rate and ``share`` are not meaningful. ``None``: not known."""


class DirectedWait(msgspec.Struct, frozen=True, kw_only=True):
    """Wait of one rank for another in operations in which not every rank waits for all others."""

    op: str
    group: str
    waiter: int
    origin: int
    """Rank that was waited for: the later one."""
    count: int
    """Number of instances in which it waited."""
    wait_us: float
    """Sum of the waits over these instances."""


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """Clock of one rank against the common clock, the median of the clocks that matched collectives link. Ranks of one host
    have one clock.
    """

    offset_us: float
    """Time by which it is ahead of the common clock: the median over the rank's collectives."""
    drift_ppm: float | None
    """Drift in microseconds per second, positive if it is too fast, over the longest time in which it was not set. ``None``: the
    drift cannot be separated from a constant offset: the collectives are too few, too close together or end too raggedly."""
    settings: int
    """1, plus 1 for each time that the clock was set while collectives were seen."""
    residual_us: float
    """Median distance of the ends of this rank's collectives from those of its peers, after the correction."""
