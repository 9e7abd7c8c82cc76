"""Groups of ranks that do the same work and can therefore be compared.

Data, tensor, context and expert parallel ranks run the same layers. Ranks of different pipeline stages do not: how the model was
cut makes one stage take longer than another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankscope.runs.records import SHARED_DIMENSIONS, STAGE_DIMENSIONS, RankInfo


def stage_of(info: RankInfo | None) -> int | None:
    """Return the pipeline stage of a rank, or ``None`` when it has none or the stage is not known."""
    coordinates = {} if info is None else info.coordinates
    return next((coordinates[name] for name in STAGE_DIMENSIONS if name in coordinates), None)


def peer_groups(ranks: Sequence[int], infos: Mapping[int, RankInfo]) -> list[list[int]]:
    """Group ranks by pipeline stage; without a pipeline there is one group of all ranks."""
    groups: dict[int | None, list[int]] = {}
    for rank in ranks:
        groups.setdefault(stage_of(infos.get(rank)), []).append(rank)
    return list(groups.values())


def batch_of(rank: int, info: RankInfo | None) -> tuple[object, ...]:
    """Return a key that is equal for ranks that work on the same samples; a rank without known coordinates has its own key."""
    if info is None or not info.coordinates:
        return ("rank", rank)
    return tuple(sorted((name, place) for name, place in info.coordinates.items() if name not in SHARED_DIMENSIONS))
