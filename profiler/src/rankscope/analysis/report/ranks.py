"""Result rows, one per rank, from breakdowns, blame and step records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.evidence.order import in_parallel
from rankscope.analysis.hang.hang_result import StandingRank
from rankscope.analysis.result.analysis import RankResult
from rankscope.analysis.result.collectives import RankClock
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.result.detail import CommunicationPart, Partition, RankDetail
from rankscope.analysis.statistics import medians
from rankscope.runs.records import DeviceKind, RankInfo, StepBreakdown

if TYPE_CHECKING:
    from rankscope.analysis.evidence.step_table.steps import (
        StepTable,  # not needed for traces, and half of all imports depend on it
    )

_SUMMED: Final = Partition.__struct_fields__
_summands = attrgetter(*_SUMMED)

TYPICAL: Final = ("blocked_us", "own_us", "wall_us")
"""Metrics whose typical value is reported per rank."""

NOTHING_TYPICAL: Final[Mapping[str, float | None]] = MappingProxyType({})

_AT_ONCE: Final = 1 << 17
"""Number of values per block; the intermediate arrays of a block fit into a processor's cache."""


def typical_values(table: StepTable) -> list[dict[str, float | None]]:
    """Return, per rank of the table, the median over its steps of each metric in ``TYPICAL``; ``None`` where nothing is known.

    Profiled steps include the profiler's cost, so they count only where there are no others.
    """
    medians = [[None if isnan(median) else median for median in _medians(table, name).tolist()] for name in TYPICAL]
    return [dict(zip(TYPICAL, of_rank, strict=True)) for of_rank in zip(*medians, strict=True)]


def _medians(table: StepTable, metric: str) -> NDArray[np.float64]:
    """Return the median of a metric per rank, [ranks]; NaN where nothing is known."""
    stored = table.stored(metric)
    medians_of_ranks = np.full(len(stored), np.nan)
    if not stored.size:
        return medians_of_ranks
    rows = max(1, _AT_ONCE // stored.shape[1])

    def enter(first: int) -> None:
        values = stored[first : first + rows]
        finite = np.isfinite(values)
        plain = finite & ~table.profiled[first : first + rows]
        used = np.where(plain.any(axis=1, keepdims=True), plain, finite)
        medians_of_ranks[first : first + rows] = medians(np.where(used, values, np.nan))

    in_parallel(stored.size, enter, range(0, len(stored), rows))
    return medians_of_ranks


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
    typical: Mapping[str, float | None] = NOTHING_TYPICAL,
    communication_parts: CommunicationPart | None = None,
    detail: RankDetail | None = None,
    clock: RankClock | None = None,
    activity: StandingRank | None = None,
    truncated: bool = False,
    data_quality: DataQuality | None = None,
) -> RankResult:
    """Return the result row of a rank, with times summed over ``breakdowns``; ``None`` for everything that was not measured.

    ``typical``: values of this rank from ``typical_values``. ``truncated``: true if its trace lacks a part.
    """
    sums: dict[str, float | None] = dict.fromkeys(_SUMMED)
    if breakdowns:
        columns = zip(*map(_summands, breakdowns), strict=True)
        sums = {name: float(sum(column)) for name, column in zip(_SUMMED, columns, strict=True)}
    if truncated:
        # A truncated trace may lack events: a zero may be missing work, and idle time is all time without events.
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
        profiled_steps=len(breakdowns) if breakdowns and info else None,
        **sums,
        overlap_ratio=overlap / communication if communication and overlap is not None else None,
        transfer_us=blame.transfer_us[rank] if blame is not None and matched else None,
        wait_us=blame.wait_us[rank] if blame is not None and matched else None,
        **{name: typical.get(name) for name in TYPICAL},
        end_reason=info.end_reason if info else None,
        communication_parts=communication_parts,
        class_us=_classes(breakdowns),
        recompute_us=_sum([row.recompute_us for row in breakdowns]),
        idle_starved_us=_sum([row.idle_starved_us for row in breakdowns]),
        idle_queued_us=_sum([row.idle_queued_us for row in breakdowns]),
        detail=detail,
        clock=clock,
        activity=activity,
        truncated=truncated,
        data_quality=data_quality,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of values; ``None`` without any value, and where one of them is not known."""
    numbers = [value for value in values if value is not None]
    return float(sum(numbers)) if numbers and len(numbers) == len(values) else None


def _classes(breakdowns: Sequence[StepBreakdown]) -> dict[str, float] | None:
    """Return the time per class summed over windows, longest first.

    ``None`` where there are no classes, or where a window with compute or communication was recorded without classes.
    """
    if any(not row.class_us and (row.compute_us or row.communication_us) for row in breakdowns):
        return None
    total: Counter[str] = Counter()
    for row in breakdowns:
        total.update(row.class_us)
    return dict(total.most_common()) or None
