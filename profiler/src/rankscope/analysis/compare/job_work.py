"""How much work one step of the whole job is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from rankscope.analysis.steps import StepTable
from rankscope.runs.records import RankInfo

WorkName = Literal["samples", "tokens", "input_elements"]
WORK_NAMES: Final[tuple[WorkName, ...]] = ("tokens", "samples", "input_elements")
"""Measures of work, best first: sequences of another length are other work, which a number of samples does not show."""

SHARED_DIMENSIONS: Final = frozenset(
    {"pp", "pipe", "pipeline", "stage", "tp", "tensor", "model", "mp", "cp", "context", "sp", "sequence"}
)
"""Dimensions of a parallel layout along which ranks work on the same samples."""


def work_per_step(table: StepTable, name: WorkName, infos: Mapping[int, RankInfo], world_size: int) -> float | None:
    """Mean work of a step of the job, over the steps of ``table``; ``None``: no rank recorded it.

    Ranks that differ in ``SHARED_DIMENSIONS`` alone work on the same samples and count once; without a known layout every rank
    counts. Ranks of the world that left no records are taken to do as much as the others.
    """
    groups: dict[tuple[object, ...], list[float]] = {}
    values = table.matrix(name)
    for row, rank in enumerate(table.ranks.tolist()):
        known = values[row][np.isfinite(values[row])]
        groups.setdefault(_replica(rank, infos.get(rank)), []).extend([float(known.mean())] if len(known) else [])
    found = [float(np.mean(group)) for group in groups.values() if group]
    total = float(np.mean(found)) * len(groups) if found else 0.0
    return total * world_size / len(table.ranks) if total > 0 else None


def _replica(rank: int, info: RankInfo | None) -> tuple[object, ...]:
    """The same for ranks that work on the same samples."""
    coordinates = {} if info is None else info.coordinates
    if not coordinates:
        return ("rank", rank)
    return tuple(sorted((name, place) for name, place in coordinates.items() if name not in SHARED_DIMENSIONS))
