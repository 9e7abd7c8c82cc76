"""State of a job's communicators in one answer of NCCL RAS, the same for both of its formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple

LARGEST: Final = 262_144
"""Largest plausible size of a communicator."""

State = Literal["running", "initializing", "finalizing", "aborting"]
Loss = Literal["left", "unreachable", "dead"]


class RasDevice(NamedTuple):
    """A GPU of a process, the same in all communicators."""

    host: str
    """Address of the node, as NCCL knows it."""
    pid: int
    gpu: int | None
    """NVML index."""


@dataclass(frozen=True, slots=True)
class Member:
    """Rank of a communicator."""

    device: RasDevice | None
    state: State | None = None
    """``None``: unknown, in text that does not list the rank."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Launched collectives by kind. Text has only the kinds in which ranks differ; RAS never counts sends, receives, nor
    collectives in CUDA graphs."""
    error: str | None = None
    """Error that NCCL reports on this rank."""
    loss: Loss | None = None
    """Why no data came about the rank: its process answered, and did not list the communicator; its process did not answer; RAS
    has given the process up, after 60 s without contact."""

    @property
    def launched(self) -> int:
        """Number of launched collectives, as far as they are counted."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Communicator:
    """A communicator, its members by rank in it."""

    name: str
    """Hash, as in NCCL's log."""
    key: str
    """Both hashes, where known: the first need not be unique."""
    size: int
    members: Mapping[int, Member]
    halves: tuple[str, ...] = ()
    """Sets of ranks that text does not list, as where each is half of the communicator: ``4 ranks: AllReduce 41``."""

    @cached_property
    def counted(self) -> dict[int, Member]:
        """Members with counts."""
        return {rank: member for rank, member in self.members.items() if member.counts}

    @cached_property
    def waiting(self) -> list[int]:
        """Ranks that launched collectives which the ranks furthest behind have not."""
        least = min((member.launched for member in self.counted.values()), default=0)
        return [rank for rank, member in self.counted.items() if member.launched > least]

    @cached_property
    def furthest(self) -> Mapping[str, int] | None:
        """Counts of the first rank of those that are furthest; ``None`` without counts."""
        return max(self.counted.values(), key=lambda member: member.launched).counts if self.counted else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One answer."""

    nccl_version: str | None
    communicators: list[Communicator]
    """All of them; in text, those with something to report."""
    total: int
    """Number of communicators."""
    gpus: int | None
    """Number of GPUs in the job; in JSON, of those in any communicator."""
    timeouts: int
    """Number of time-outs between the processes while the data was collected."""

    def devices(self) -> set[RasDevice]:
        """Return all known devices."""
        return devices_of(self.communicators)


def devices_of(communicators: Iterable[Communicator]) -> set[RasDevice]:
    """Return the known devices of the communicators."""
    members = (member for communicator in communicators for member in communicator.members.values())
    return {member.device for member in members if member.device is not None}


class AnswerError(ValueError):
    """An answer that cannot be read; the message says why."""
