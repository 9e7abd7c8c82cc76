"""What the recorder itself took of the training it recorded."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from rankscope.analysis.steps import StepTable
from rankscope.runs.records import RankInfo


def recorder_share(
    table: StepTable, infos: Mapping[int, RankInfo], *, earlier_us: Mapping[int, float] = MappingProxyType({})
) -> float | None:
    """Share of its step time on the rank that paid most; of ranks with all their records, as the cost is of all steps."""
    shares = []
    for row, rank in enumerate(table.ranks.tolist()):
        info = infos.get(rank)
        if info is None or info.recorder_cost_us is None:
            continue
        if info.dropped_records or info.unconfirmed_records or info.expired_records.get("steps"):
            continue
        wall = float(np.nansum(table.of_rank("wall_us", row), dtype=np.float64)) + earlier_us.get(rank, 0.0)
        if wall > 0 and info.recorder_cost_us >= 0:
            shares.append(info.recorder_cost_us / wall)
    return max(shares, default=None)
