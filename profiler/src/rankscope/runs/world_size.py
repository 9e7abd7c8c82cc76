"""Number of ranks of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rankscope.runs.records import AttemptInfo, RankInfo

LARGEST_WORLD: Final = 1_000_000
"""Largest plausible world size; a larger one in a file is damage."""


def recorded_world_size(about: AttemptInfo | None, infos: Iterable[RankInfo]) -> int | None:
    """Return the world size recorded by the attempt, else by its ranks; ``None`` where neither has it."""
    return about.world_size if about is not None else max((info.world_size for info in infos), default=None)
