"""Control groups of a process: the job, pod and container that they name."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_UUID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
# Static pods have a hash as their uid. Some runtimes write "….slice:cri-containerd:ID" as one path component.
_POD: Final = re.compile(rf"(?:.*-)?pod({_UUID}|[0-9a-f]{{32}})(?:\.slice)?(?::[a-z-]+:([0-9a-f]{{64}}))?")
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_SLURM: Final = re.compile(r"slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope|uid_[0-9]+")
_JOB: Final = re.compile(r"job_([0-9]+)")
_SLUID: Final = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
"""Slurm's unique id of one run of a job, which names its cgroups (version 2) since Slurm 26.05."""


class CgroupIdentity(msgspec.Struct, frozen=True):
    """Job, pod and container of a process, from its cgroups; unknown fields are None. A container need not belong to a pod.

    A job of Slurm has either its ``job_id`` or its ``sluid``.
    """

    job_id: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    sluid: str | None = None


def parse_cgroups(text: str) -> CgroupIdentity:
    """Parse ``/proc/PID/cgroup`` of cgroup version 1 (a line per controller), 2 (one line), or both.

    If the reader has a cgroup namespace of its own, a path may begin with ``/..`` or in the middle of the hierarchy, so its
    beginning is not interpreted.
    """
    merged = CgroupIdentity()
    for line in text.splitlines():
        _, _, path = line.partition(":")[2].partition(":")
        identity = _identity([part for part in path.split("/") if part not in ("", "..")])
        merged = CgroupIdentity(
            merged.job_id or identity.job_id,
            merged.pod_uid or identity.pod_uid,
            merged.container_id or identity.container_id,
            merged.sluid or identity.sluid,
        )
    return merged


def _identity(parts: list[str]) -> CgroupIdentity:
    """Find job, pod and container in the components of a cgroup path.

    The outermost job or pod counts, because a process may create groups of any name below its own. The innermost container
    counts, because the node may itself be a container.
    """
    job_id = pod_uid = container_id = sluid = None
    for above, part in zip(("", *parts), parts, strict=False):
        if part == "user.slice":  # the user chooses the names below
            break
        if pod := _POD.fullmatch(part):
            pod_uid = pod_uid or pod[1].replace("_", "-")
            container_id = pod[2] or container_id
        elif (job := _JOB.fullmatch(part)) or _SLUID.fullmatch(part):
            if job_id is None and sluid is None and (above == "" or _SLURM.fullmatch(above)):
                job_id, sluid = (job[1], None) if job else (None, part)
        elif container := _CONTAINER.fullmatch(part):
            container_id = container[1]
    return CgroupIdentity(job_id, pod_uid, container_id, sluid)
