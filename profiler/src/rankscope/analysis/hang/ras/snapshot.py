"""State of a job's communicators in one answer of NCCL RAS, the same for both of its formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

LARGEST: Final = 262_144
"""Largest plausible size of a communicator."""

State = Literal["running", "initializing", "finalizing", "aborting"]


class Device(NamedTuple):
    """A GPU of a process, the same in all communicators."""

    host: str
    """Address of the node, as NCCL knows it."""
    pid: int
    gpu: int | None
    """NVML index."""


@dataclass(frozen=True, slots=True)
class Member:
    """Rank of a communicator whose process answered."""

    device: Device | None
    state: State | None
    """``None``: unknown, in text that does not list the rank."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Launched collectives by kind. Text has only the kinds in which ranks differ; RAS never counts sends, receives, nor
    collectives in CUDA graphs."""
    error: str | None = None
    """Error that NCCL reports on this rank."""

    @property
    def launched(self) -> int:
        """Number of launched collectives, as far as they are counted."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Absent:
    """Rank of a communicator about which no data came."""

    device: Device | None
    reachable: bool
    """True if its process answered, and did not list the communicator."""
    dead: bool = False
    """True if RAS has given the process up, after 60 s without contact."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator, its members and absent ranks by rank in it."""

    name: str
    """Hash, as in NCCL's log."""
    key: str
    """Both hashes, where known: the first need not be unique."""
    size: int
    members: Mapping[int, Member]
    absent: Mapping[int, Absent]
    halves: tuple[str, ...] = ()
    """Sets of ranks that text does not list, as where each is half of the communicator: ``4 ranks: AllReduce 41``."""

    def device(self, rank: int) -> Device | None:
        """Return the device of a rank, if the answer lists it."""
        member, absent = self.members.get(rank), self.absent.get(rank)
        return member.device if member is not None else absent.device if absent is not None else None

    def devices(self) -> dict[int, Device]:
        """Return the known devices by rank."""
        return {rank: device for rank in (*self.members, *self.absent) if (device := self.device(rank)) is not None}


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

    def devices(self) -> set[Device]:
        """Return all known devices."""
        return devices_of(self.communicators)


def devices_of(communicators: Iterable[Communicator]) -> set[Device]:
    """Return the known devices of the communicators."""
    return {device for one in communicators for device in one.devices().values()}


class AnswerError(ValueError):
    """An answer that cannot be read; the message says why."""
