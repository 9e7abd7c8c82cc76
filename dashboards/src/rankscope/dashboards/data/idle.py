"""GPUs that are allocated but not in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGpu:
    """One idle GPU as the exporter reports it: ``gpu_allocated`` is 1, ``gpu_in_use`` 0; the rest is from ``gpu_job_info``."""

    uuid: str
    host: str | None = None
    user: str | None = None
    account: str | None = None
    job_id: str | None = None
    idle_hours: float | None = None
    """Idle hours in the last 24 hours under the same job; ``None``: only the present state is known."""


class IdleGpus(Protocol):
    """Query for idle GPUs and the users and jobs that hold them."""

    def __call__(self) -> list[IdleGpu]:
        """Return the GPUs that are idle now. Raises ``RankscopeError``."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Idle GPUs that one user holds on one account."""

    user: str | None
    account: str | None
    gpus: int
    idle_hours: float | None
    """``None`` unless it is known for every GPU."""
    hosts: tuple[str, ...]
    jobs: tuple[str, ...]


def by_holder(gpus: Sequence[IdleGpu]) -> list[Holder]:
    """Return the holders of idle GPUs, sorted by the number of GPUs, highest first."""
    groups: dict[tuple[str | None, str | None], list[IdleGpu]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.user, gpu.account), []).append(gpu)
    holders = [
        Holder(
            user,
            account,
            len(held),
            None if any(gpu.idle_hours is None for gpu in held) else sum(gpu.idle_hours or 0.0 for gpu in held),
            tuple(sorted({gpu.host for gpu in held if gpu.host is not None})),
            tuple(sorted({gpu.job_id for gpu in held if gpu.job_id is not None})),
        )
        for (user, account), held in groups.items()
    ]
    return sorted(holders, key=lambda holder: (-holder.gpus, holder.user or "", holder.account or ""))
