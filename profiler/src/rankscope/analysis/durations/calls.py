"""Operations of all ranks with their durations, from any source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rankscope.analysis.collectives.cycles import Issued
from rankscope.analysis.hang.result import HangReport
from rankscope.analysis.operations import operation
from rankscope.runs.durations import DurationSource

MAX_CALLS: Final = 500_000
"""Maximum number of operations of all ranks that are compared, the last ones."""

RECORD_IT: Final = "record the job with `rankscope run`"
"""Way to more evidence where a job is not recorded."""

Steps = dict[int, list[int | None]]


class Call(msgspec.Struct, frozen=True, gc=False):
    """Operation of one rank. Of a source's records only this is kept, because they would fill the memory."""

    issued: Issued
    group: str
    op: str
    sequence: int
    is_matchable: bool
    """False for sends and receives, and for groups whose members are unknown."""
    elements: int
    bytes: int | None
    duration_us: float | None
    is_part: bool
    """True for a send or receive of a batch, whose duration is that of the batch."""
    ended_ns: int = 0
    """End on the rank's clock in unix nanoseconds; 0 where unknown."""

    @property
    def is_transfer(self) -> bool:
        """True for a send, a receive, or a batch of them."""
        return operation(self.op).is_p2p


@dataclass(slots=True)
class RankCalls:
    """Operations of one rank in the order in which they were issued."""

    calls: list[Call] = field(default_factory=list)
    members: dict[str, list[int]] = field(default_factory=dict)
    """Members by name of the group, where the source lists them."""
    damaged: int = 0
    """Number of records that could not be used."""


@dataclass(frozen=True, slots=True)
class Wording:
    """Words for a source in messages."""

    one: str
    """Input of one rank, such as "dump"."""
    many: str
    missing: str
    """Note on ranks without one; ``{found}`` and ``{world_size}`` are filled in."""
    more_steps: str
    """Way to more steps."""
    together: str
    """Way to the same collectives of all ranks."""
    more_order: str
    """Way to the order of operations of different groups."""
    more_evidence: str = RECORD_IT
    """Way to evidence that durations do not hold."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Operations of all ranks with their durations."""

    kind: DurationSource
    ranks: Mapping[int, RankCalls]
    world_size: int
    wording: Wording
    steps_of: Callable[[Mapping[int, Sequence[Issued]]], Steps]
    """Function that infers the step of each operation of each rank."""
    warnings: list[str]
    hidden: Mapping[int, int] = field(default_factory=dict)
    """Number of collectives per rank that the source left out, where known."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Process of each rank, where ranks are numbers that only this analysis gives."""
    stages: Mapping[int, int | None] = field(default_factory=dict)
    """Pipeline stage of each rank, where the source shows that from all sends and receives; empty otherwise."""
    hang: HangReport | None = None
    """Report on a hang, or on long waits whose reason the source does not show."""
