"""Warnings of what the check of device events found in the traces of a job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.result.text import counted
from rankscope.base.text import ranks_text

NO_OTHERS: Final[Mapping[int, int]] = MappingProxyType({})

_WARNED: Final = 0.005
"""Share of launches without their kernel from which they are worth a warning."""


def quality_warnings(qualities: Mapping[int, DataQuality], others: Mapping[int, int] = NO_OTHERS) -> list[str]:
    """Return at most one sentence each on events left out or cut, on launches without their kernel, and on unused traces.

    ``others``: number of other events that are left out, by rank.
    """
    warnings = []
    unused = {rank: quality for rank, quality in qualities.items() if quality.problem is not None}
    used = {rank: quality for rank, quality in qualities.items() if rank not in unused}
    damaged = {rank: quality for rank, quality in used.items() if quality.without_time or quality.far or quality.overlong}
    if damaged:
        events = sum(quality.device_events for quality in damaged.values())
        parts = [
            (sum(quality.without_time for quality in damaged.values()), "left out without a time"),
            (sum(quality.far for quality in damaged.values()), "left out, far in time from the rest"),
            (sum(quality.overlong for quality in damaged.values()), "cut, as they last beyond the next event of their stream"),
        ]
        counts_text = ", ".join(f"{count:,} {wording}" for count, wording in parts if count)
        share = sum(count for count, _ in parts) / events
        warnings.append(
            f"{share:.1%} of the {counted(events, 'device event')} of {ranks_text(sorted(damaged))} are damaged: {counts_text}"
        )
    lost = {rank: quality for rank, quality in used.items() if _lost(quality)}
    if lost:
        launches, kernels = (sum(getattr(quality, name) for quality in lost.values()) for name in ("launches", "without_kernel"))
        shares = {rank: quality.without_kernel / quality.launches for rank, quality in lost.items()}
        worst = max(shares, key=lambda rank: (shares[rank], -rank))
        most = f", {shares[worst]:.0%} of rank {worst}" if len(lost) > 1 else ""
        warnings.append(
            f"{kernels:,} of {launches:,} kernel launches of {ranks_text(sorted(lost))} have no kernel in the trace "
            f"({kernels / launches:.0%}{most}): the profiler lost those kernels, and the figures are of the others"
        )
    if left_out := {rank: count for rank, count in others.items() if count}:
        counts_text = f"{counted(sum(left_out.values()), 'event')} of {ranks_text(sorted(left_out))}"
        warnings.append(f"{counts_text}{' besides' if damaged else ''} left out: damaged, or their times make no sense")
    if unused:
        rank, quality = next(iter(unused.items()))
        alike = f", and those of {ranks_text(sorted(unused.keys() - {rank}))} are like it" if len(unused) > 1 else ""
        warnings.append(f"not used: the trace of rank {rank} {quality.reason}{alike}")
    return warnings


def _lost(quality: DataQuality) -> bool:
    return quality.without_kernel > 1 and quality.without_kernel >= _WARNED * quality.launches
