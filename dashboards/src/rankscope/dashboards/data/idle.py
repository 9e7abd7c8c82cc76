"""GPUs that somebody holds and nobody uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGpu:
    """One GPU as the exporter tells of it: ``gpu_allocated`` is 1, ``gpu_in_use`` 0; the rest from ``gpu_job_info``."""

    uuid: str
    host: str | None = None
    user: str | None = None
    account: str | None = None
    job_id: str | None = None
    idle_hours: float | None = None
    """In the last 24 hours, under the same job; ``None``: only that it is idle now is known."""


class IdleGpus(Protocol):
    """Asks who holds idle GPUs."""

    def __call__(self) -> list[IdleGpu]:
        """Those that are idle now. Raises ``RankscopeError``."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What one user holds on one account."""

    user: str | None
    account: str | None
    gpus: int
    idle_hours: float | None
    """``None`` where it is not known of every GPU."""
    hosts: tuple[str, ...]
    jobs: tuple[str, ...]


def by_holder(gpus: Sequence[IdleGpu]) -> list[Holder]:
    """Who holds most idle GPUs first."""
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
