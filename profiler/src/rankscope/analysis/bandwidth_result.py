"""What ``analyze`` says of collectives' bandwidth, and of who waited for whom in sends and operations with a root."""

from __future__ import annotations

from typing import Literal

import msgspec


class CollectiveBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one operation, process group and size. GB are 1e9 bytes.

    Times and bandwidths are of the transfer, after the last rank had come, not of the waiting before it. Of one instance each;
    without a mark the median over the matched instances, ``p10`` and ``p90`` the deciles around it.
    """

    op: str
    group: str
    group_size: int | None
    """Ranks of the group."""
    size_bucket_bytes: int | None
    """Instances of this size up to less than twice as much; ``None``: their sizes are not known."""
    bytes: int | None
    """Median size of an instance: of the whole array, which is the larger of a rank's input and output."""
    count: int
    """Instances seen on any rank."""
    matched: int
    """Those of them whose transfer is known; all figures but ``bus_at_least_gb_s`` are of these."""
    transfer_us: float | None
    transfer_p10_us: float | None
    transfer_p90_us: float | None
    wait_us: float | None
    """Mean wait of a rank per instance."""
    algorithm_gb_s: float | None
    """Size over transfer time."""
    bus_gb_s: float | None
    """What crossed each link: algorithm bandwidth times the operation's factor."""
    bus_p10_gb_s: float | None
    bus_p90_gb_s: float | None
    bus_at_least_gb_s: float | None
    """Bus bandwidth had nobody waited: what it was at least, where other ranks' side is not at hand."""
    link: str | None
    """Link that carries it (a name of ``analysis/links.py``)."""
    link_source: Literal["gpu_name", "told"] | None
    expected_gb_s: float | None
    """Bare rate of that link for this operation; ``None``: not known, ``expected_unknown`` says why."""
    expected_unknown: str | None
    share: float | None
    """``bus_gb_s`` over ``expected_gb_s``; more than 1 where switches reduce or multicast in the network."""
    bound_by: Literal["bandwidth", "latency"] | None
    """``latency``: its link should be done with it so soon that neither its rate nor ``share`` says much. ``None``: not known."""


class DirectedWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long one rank waited for another where not everybody waits for everybody."""

    op: str
    group: str
    waiter: int
    origin: int
    """The rank that was waited for: the later one."""
    count: int
    """Instances in which it waited."""
    wait_us: float
    """Sum over them."""
