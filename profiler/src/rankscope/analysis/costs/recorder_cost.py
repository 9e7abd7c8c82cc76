"""Cost of the recorder itself, as a share of the training time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.runs.records import RankInfo


def recorder_share(
    table: StepTable, infos: Mapping[int, RankInfo], *, earlier_us: Mapping[int, float] = MappingProxyType({})
) -> float | None:
    """Return the largest share of the step time that the recorder took on any rank; ``None`` if it is known for no rank.

    Only ranks with all their step records count, because the recorder's cost covers all steps. ``earlier_us``: summed wall time
    per rank of the steps before the table.
    """
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
