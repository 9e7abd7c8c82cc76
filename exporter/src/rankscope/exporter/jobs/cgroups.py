"""What the control groups of a process say about the job or pod it belongs to."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_UUID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
# Pods of files have a hash for their uid. Some runtimes write "….slice:cri-containerd:ID" as one name.
_POD: Final = re.compile(rf"(?:.*-)?pod({_UUID}|[0-9a-f]{{32}})(?:\.slice)?(?::[a-z-]+:([0-9a-f]{{64}}))?")
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_SLURM: Final = re.compile(r"slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope|uid_[0-9]+")
_JOB: Final = re.compile(r"job_([0-9]+)")
_STEP: Final = re.compile(r"step_.+")


class Place(msgspec.Struct, frozen=True):
    """Where a process runs; None where its groups do not say. ``container_id`` is its container's, in a pod or not."""

    job_id: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None


def place_of(text: str) -> Place:
    """Read ``/proc/PID/cgroup``, of version 1 (a line per controller), 2 (one line), or both.

    A path may begin with ``/..``, or in the middle, when the reader has a cgroup namespace of its own: nothing is expected of
    its beginning.
    """
    job_id = pod_uid = container_id = None
    for line in text.splitlines():
        _, _, path = line.partition(":")[2].partition(":")
        found = _place([part for part in path.split("/") if part not in ("", "..")])
        job_id, pod_uid, container_id = job_id or found.job_id, pod_uid or found.pod_uid, container_id or found.container_id
    return Place(job_id, pod_uid, container_id)


def _place(parts: list[str]) -> Place:
    """What is higher up counts: root made it, while below its own group a process may make whatever it likes."""
    for depth, part in enumerate(parts):
        if part == "user.slice":
            return Place()
        if pod := _POD.fullmatch(part):
            return Place(pod_uid=pod[1].replace("_", "-"), container_id=pod[2] or _container(parts[depth + 1 :]))
        if (job := _JOB.fullmatch(part)) and _is_slurms(parts, depth):
            return Place(job_id=job[1])
        if container := _CONTAINER.fullmatch(part):
            return Place(container_id=container[1])
    return Place()


def _container(parts: list[str]) -> str | None:
    return next((match[1] for part in parts if (match := _CONTAINER.fullmatch(part))), None)


def _is_slurms(parts: list[str], depth: int) -> bool:
    above, below = parts[depth - 1 : depth], parts[depth + 1 : depth + 2]
    return any(_SLURM.fullmatch(part) for part in above) if above else any(_STEP.fullmatch(part) for part in below)
