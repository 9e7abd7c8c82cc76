"""Which ranks can be compared: those that do the same work.

Data, tensor, context and expert parallel ranks run the same layers. Ranks of different pipeline stages do not: that one stage
needs longer than another is how the model was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.runs.records import RankInfo

STAGE_DIMENSIONS: Final = ("pp", "pipe", "pipeline", "stage")
"""Names that people give to the pipeline's dimension of their layout."""


def stage_of(info: RankInfo | None) -> int | None:
    """The pipeline stage of a rank, or ``None`` when it is in none or nobody knows."""
    coordinates = {} if info is None else info.coordinates
    return next((coordinates[name] for name in STAGE_DIMENSIONS if name in coordinates), None)


def peer_groups(ranks: Sequence[int], infos: Mapping[int, RankInfo]) -> list[list[int]]:
    """The ranks, those of one pipeline stage together. Without a pipeline that is one group of all."""
    groups: dict[int | None, list[int]] = {}
    for rank in ranks:
        groups.setdefault(stage_of(infos.get(rank)), []).append(rank)
    return list(groups.values())
