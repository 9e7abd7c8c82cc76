"""How many ranks a job has."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.runs.records import AttemptInfo, RankInfo


def told_world_size(about: AttemptInfo | None, infos: Iterable[RankInfo]) -> int | None:
    """As the attempt tells, else its ranks; ``None``: nobody does."""
    return about.world_size if about is not None else max((info.world_size for info in infos), default=None)
