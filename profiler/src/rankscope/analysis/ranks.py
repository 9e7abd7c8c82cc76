"""One row per rank of the result, out of breakdowns, blame and step records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from rankscope.analysis.blame import Blame
from rankscope.analysis.clock_result import RankClock
from rankscope.analysis.detail_result import CommunicationPart, RankDetail
from rankscope.analysis.result import RankResult
from rankscope.runs.records import DeviceKind, RankInfo, StepBreakdown

if TYPE_CHECKING:
    from rankscope.analysis.steps import StepTable  # traces have none, and half of what is imported hangs on it

_SUMMED: Final = (
    "window_us",
    "compute_us",
    "communication_us",
    "overlap_us",
    "exposed_communication_us",
    "memcpy_us",
    "exposed_memcpy_us",
    "idle_us",
)


def rank_result(
    rank: int,
    *,
    breakdowns: Sequence[StepBreakdown],
    blame: Blame | None,
    steps: int,
    attempt: int = 0,
    info: RankInfo | None = None,
    host: str | None = None,
    device_kind: DeviceKind | None = None,
    table: StepTable | None = None,
    communication_parts: CommunicationPart | None = None,
    detail: RankDetail | None = None,
    clock: RankClock | None = None,
    truncated: bool = False,
) -> RankResult:
    """Times summed over the breakdowns; ``None`` for everything that was not measured. ``truncated``: its trace lacks a part."""
    sums: dict[str, float | None] = dict.fromkeys(_SUMMED)
    if breakdowns:
        sums = {name: float(sum(getattr(row, name) for row in breakdowns)) for name in _SUMMED}
    if truncated:
        # What is not there may be missing, and idle is all that is not there.
        sums = {name: value or None for name, value in sums.items()} | {"idle_us": None}
    communication, overlap = sums["communication_us"], sums["overlap_us"]
    matched = blame is not None and blame.transfer_us.get(rank, 0.0) > 0
    return RankResult(
        rank=rank,
        host=info.host if info else host,
        gpu_uuid=info.gpu_uuid if info else None,
        device_kind=info.device_kind if info else device_kind,
        attempt=attempt,
        steps=steps,
        window_basis=breakdowns[0].window_basis if breakdowns else None,
        window_us=sums["window_us"],
        compute_us=sums["compute_us"],
        communication_us=communication,
        overlap_us=overlap,
        exposed_communication_us=sums["exposed_communication_us"],
        memcpy_us=sums["memcpy_us"],
        exposed_memcpy_us=sums["exposed_memcpy_us"],
        idle_us=sums["idle_us"],
        overlap_ratio=overlap / communication if communication and overlap is not None else None,
        transfer_us=blame.transfer_us[rank] if blame is not None and matched else None,
        wait_us=blame.wait_us[rank] if blame is not None and matched else None,
        blocked_us=_median(table, "blocked_us", rank),
        own_us=_median(table, "own_us", rank),
        wall_us=_median(table, "wall_us", rank),
        end_reason=info.end_reason if info else None,
        communication_parts=communication_parts,
        class_us=_classes(breakdowns),
        recompute_us=_sum([row.recompute_us for row in breakdowns]),
        idle_starved_us=_sum([row.idle_starved_us for row in breakdowns]),
        idle_queued_us=_sum([row.idle_queued_us for row in breakdowns]),
        detail=detail,
        clock=clock,
        truncated=truncated,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """``None`` without any value, and where one of them is not known."""
    known = [value for value in values if value is not None]
    return float(sum(known)) if known and len(known) == len(values) else None


def _classes(breakdowns: Sequence[StepBreakdown]) -> dict[str, float] | None:
    """Summed over windows, longest first. A window in which something ran has a class, unless it was recorded without any."""
    if any(not row.class_us and (row.compute_us or row.communication_us) for row in breakdowns):
        return None
    total: Counter[str] = Counter()
    for row in breakdowns:
        total.update(row.class_us)
    return dict(total.most_common()) or None


def _median(table: StepTable | None, metric: str, rank: int) -> float | None:
    if table is None:
        return None
    at = int(np.searchsorted(table.ranks, rank))
    row = table.of_rank(metric, at)
    # Profiled steps carry the profiler's cost; without others they are all there is.
    known = np.isfinite(row)
    plain = row[known & ~table.profiled[at]]
    values = plain if len(plain) else row[known]
    if not len(values):
        return None
    # Of a thousand ranks; np.median takes longer for its preparations than for its answer.
    half = len(values) // 2
    halves = np.partition(values, half)
    return float(halves[half]) if len(values) % 2 else (float(halves[:half].max()) + float(halves[half])) / 2
