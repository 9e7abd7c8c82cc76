"""Groups of ranks that work on the same samples."""

from __future__ import annotations

from typing import Final

from rankscope.analysis.peers import STAGE_DIMENSIONS
from rankscope.runs.records import RankInfo

SHARED_DIMENSIONS: Final = frozenset((*STAGE_DIMENSIONS, "tp", "tensor", "model", "mp", "cp", "context", "sp", "sequence"))
"""Dimensions of a parallel layout along which ranks share samples; along all others each rank has its own."""


def batch_of(rank: int, info: RankInfo | None) -> tuple[object, ...]:
    """Return a key that is equal for ranks that work on the same samples; a rank without known coordinates has its own key."""
    if info is None or not info.coordinates:
        return ("rank", rank)
    return tuple(sorted((name, place) for name, place in info.coordinates.items() if name not in SHARED_DIMENSIONS))
