"""Work of one step of the whole job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from rankscope.analysis.evidence.peers import batch_of
from rankscope.analysis.evidence.steps import StepTable
from rankscope.runs.records import RankInfo

WorkName = Literal["samples", "tokens", "input_elements"]
WORK_NAMES: Final[tuple[WorkName, ...]] = ("tokens", "samples", "input_elements")
"""Measures of work, best first: the number of samples does not show the length of the sequences."""


def work_per_step(table: StepTable, name: WorkName, infos: Mapping[int, RankInfo], world_size: int) -> float | None:
    """Return the mean work of a step of the job over the steps of ``table``; ``None`` if no rank recorded it.

    Ranks that work on the same samples (``batch_of``) count once. Ranks without records are assumed to do as much as the others.
    """
    groups: dict[tuple[object, ...], list[float]] = {}
    values = table.matrix(name)
    for row, rank in enumerate(table.ranks.tolist()):
        known = values[row][np.isfinite(values[row])]
        groups.setdefault(batch_of(rank, infos.get(rank)), []).extend([float(known.mean())] if len(known) else [])
    found = [float(np.mean(group)) for group in groups.values() if group]
    total = float(np.mean(found)) * len(groups) if found else 0.0
    return total * world_size / len(table.ranks) if total > 0 else None
