"""Who may be on a GPU: those a scheduler gave it to, and those whose processes have it open."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True):
    """A GPU, or a part of one, as a scheduler names it: by ``uuid``, or by ``number``, that of its device file.

    With instances it is the MIG device with these on that GPU. With neither uuid nor number it is one that cannot be told.
    """

    uuid: str | None = None
    number: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A job or a pod's container; None is what is not known. ``uid`` is the user's, where the node itself knows the user."""

    job_id: str | None = None
    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None

    @property
    def party(self) -> str:
        """The same for all that belongs together: a Slurm job, or a pod whatever its containers."""
        return f"job {self.job_id}" if self.job_id is not None else f"pod {self.namespace}/{self.pod}"


class Hold(msgspec.Struct, frozen=True):
    """A scheduler's word: these devices are theirs. Not all of the devices need to be of this node's driver."""

    identity: Identity
    devices: tuple[Device, ...]


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a process in distributed training; None is what is not known."""

    rank: str | None = None
    local_rank: str | None = None
    world_size: str | None = None
    run_id: str | None = None


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a GPU open.

    ``job_id`` is where its cgroup says so; ``claimed_job_id``, like ``account``, ``partition`` and ``ranks``, comes from its
    environment, which is the user's to write. ``environ_read`` tells whether that could be read. ``uid`` is the owner's as the
    node sees it; ``service`` is a process of the driver's own, nobody's job.
    """

    pid: int
    uid: int
    job_id: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    claimed_job_id: str | None = None
    account: str | None = None
    partition: str | None = None
    ranks: Ranks = Ranks()
    environ_read: bool = False
    service: bool = False
