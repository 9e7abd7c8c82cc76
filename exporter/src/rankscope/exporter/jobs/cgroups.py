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
    """Of jobs and pods the outermost counts: below its own group a process may make whatever it is let.

    Of containers it is the innermost: a node may itself be one.
    """
    job_id = pod_uid = container_id = None
    for above, part in zip(("", *parts), parts, strict=False):
        if part == "user.slice":  # from here on, groups are the user's own
            break
        if pod := _POD.fullmatch(part):
            pod_uid = pod_uid or pod[1].replace("_", "-")
            container_id = pod[2] or container_id
        elif job := _JOB.fullmatch(part):
            job_id = job_id or (job[1] if above == "" or _SLURM.fullmatch(above) else None)
        elif container := _CONTAINER.fullmatch(part):
            container_id = container[1]
    return Place(job_id, pod_uid, container_id)
