"""Global ranks of the ranks in communicators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.analysis.hang.ras.snapshot import Communicator, Device, Snapshot


@dataclass(frozen=True, slots=True)
class Places:
    """Which communicators are of the whole job, and the global ranks of devices."""

    world_size: int | None
    whole: frozenset[str]
    """Keys of the communicators of the whole job: their ranks are the global ones, as torch makes them."""
    by_device: Mapping[Device, int]
    by_pid: Mapping[int, int]
    """Global rank by process id, where the run records one rank with it."""

    def of(self, communicator: Communicator, rank: int) -> int | None:
        """Return the global rank, or ``None`` if it is unknown."""
        if communicator.key in self.whole:
            return rank
        device = communicator.device(rank)
        if device is None:
            return None
        return self.by_device.get(device, self.by_pid.get(device.pid))


def find_places(snapshot: Snapshot, *, world_size: int | None, pids: Mapping[int, int]) -> Places:
    """Find the communicators of the whole job. ``world_size`` and ``pids`` (rank to process id): of the run, where known."""
    world = world_size or snapshot.gpus
    whole = [one for one in snapshot.communicators if one.size == world]
    by_device: dict[Device, int] = {}
    unique = Counter(pids.values())
    # Several GPUs of one process are several ranks, which the run records as one.
    shared = Counter(device.pid for device in snapshot.devices())
    by_pid = {pid: rank for rank, pid in pids.items() if unique[pid] == 1 and shared[pid] == 1}
    for communicator in whole:
        for rank, device in communicator.devices().items():
            if by_device.setdefault(device, rank) != rank:
                # A group of all ranks in another order: which one has the global ranks is unknown.
                return Places(world, frozenset(), {}, by_pid)
    return Places(world, frozenset(one.key for one in whole), by_device, by_pid)
