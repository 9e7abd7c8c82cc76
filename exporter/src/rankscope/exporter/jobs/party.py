"""Records of the jobs module: allocations of a scheduler, and processes that have a GPU open."""

from __future__ import annotations

import msgspec


class SchedulerDevice(msgspec.Struct, frozen=True):
    """A GPU or MIG device as a scheduler names it: by ``uuid``, or by ``number``, its device minor number.

    With instances, it is the MIG device with these ids on that GPU. With neither uuid nor number, it cannot be identified.
    """

    uuid: str | None = None
    number: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class PartyIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A job or a pod's container; unknown fields are None. ``uid`` is set only if it is a user of the node itself.

    ``sluid`` is Slurm's unique id of this run of the job.
    """

    job_id: str | None = None
    sluid: str | None = None
    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None

    @property
    def party(self) -> str:
        """Name of the Slurm job, or of the pod, which all its containers share."""
        return f"job {self.job_id}" if self.job_id is not None else f"pod {self.namespace}/{self.pod}"


class Allocation(msgspec.Struct, frozen=True):
    """Devices that a scheduler allocated to a job or container. Some may be unknown to this node's driver."""

    identity: PartyIdentity
    devices: tuple[SchedulerDevice, ...]


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a process in distributed training; unknown fields are None."""

    rank: str | None = None
    local_rank: str | None = None
    world_size: str | None = None
    run_id: str | None = None


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has a GPU open. ``namespace`` and ``pod`` are those of its ``pod_uid``, if known.

    ``job_id`` or ``sluid`` comes from its cgroup. ``claimed_job_id``, ``account``, ``partition`` and ``ranks`` come from its
    environment, which the user controls; ``environ_read`` is False if that was empty or unreadable. ``uid`` is the owner as the
    node sees it. ``service`` marks a process of the driver, which belongs to no job.
    """

    pid: int
    uid: int
    job_id: str | None = None
    sluid: str | None = None
    pod_uid: str | None = None
    namespace: str | None = None
    pod: str | None = None
    container_id: str | None = None
    claimed_job_id: str | None = None
    account: str | None = None
    partition: str | None = None
    ranks: Ranks = Ranks()
    environ_read: bool = False
    service: bool = False
