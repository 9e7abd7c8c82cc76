"""Owner, control groups (with the job or pod they name) and environment of the processes on the GPUs, read from ``/proc``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankscope.exporter.jobs.deadline import BusyError, Deadline
from rankscope.exporter.jobs.environment import number, ranks_of, variables, word
from rankscope.exporter.jobs.party import Use

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


MAX_PROCESSES: Final = 1024
_MAX_BYTES: Final = 64 * 1024
_READ_AGAIN_S: Final = 30.0  # an exec, or a launcher that sorts its processes into groups late, changes what was read
_ENVIRON_DEADLINE_S: Final = 0.2
_MOST_STUCK: Final = 4
_SLACK_S: Final = 2.0
# The number the kernel gives to the first PID namespace: there alone the driver's process numbers are ours for certain.
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_UID: Final = re.compile(r"^Uid:\s+[0-9]+\s+([0-9]+)", re.MULTILINE)
_NAME: Final = re.compile(r"^Name:\s+(.*)$", re.MULTILINE)
_SERVICE: Final = "nvidia-cuda-mps"  # its server opens the GPU for the processes that share it
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class _Known(msgspec.Struct, frozen=True):
    start_ticks: int
    use: Use
    read_s: float
    stuck: bool


class ProcessTable:
    """Processes by number, read once and again after a while; a number that another process got is noticed.

    One thread calls. A process whose environment cannot be read in time (its memory is locked by a thread stuck in the kernel) is
    known by the rest, and not touched again.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, _Known] = {}
        self._deadline = Deadline(_ENVIRON_DEADLINE_S, most_stuck=_MOST_STUCK)

    def sees_all(self) -> bool:
        """Whether the driver's process numbers are also ours: not in a container without the node's PID namespace."""
        try:
            return str((self._proc / "self" / "ns" / "pid").readlink()) == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def read(self, named: Mapping[int, float], *, now_s: float | None = None) -> dict[int, Use]:
        """What is known of each process; those that ended are left out.

        ``named`` is number → when the driver named it, on the monotonic clock, as is ``now_s``.
        """
        now_s = time.monotonic() if now_s is None else now_s
        known: dict[int, _Known] = {}
        for pid in sorted(named)[:MAX_PROCESSES]:
            try:
                known[pid] = self._read(pid, named[pid], now_s)
            except (OSError, ValueError):
                continue
        self._known = known
        return {pid: one.use for pid, one in known.items()}

    def _read(self, pid: int, named_s: float, now_s: float) -> _Known:
        # By this descriptor it stays the same process, even when another gets its number.
        fd = os.open(self._proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            start_ticks = _start_ticks(_text("stat", fd))
            if _began_s(start_ticks) > named_s + _SLACK_S:
                raise ValueError("the number is another process's by now")
            before = self._known.get(pid)
            if (
                before is not None
                and before.start_ticks == start_ticks
                and (now_s - before.read_s < _READ_AGAIN_S or before.stuck)
            ):
                return before
            status = _text("status", fd)
            environ, stuck = self._environ(fd)
            return _Known(start_ticks, _use(pid, status, _text("cgroup", fd), environ), now_s, stuck)
        finally:
            os.close(fd)

    def _environ(self, process_fd: int) -> tuple[bytes | None, bool]:
        own = os.dup(process_fd)  # the call may outlive the caller's

        def read() -> bytes:
            try:
                return _bytes("environ", own)
            finally:
                os.close(own)

        try:
            return self._deadline.ask(read), False
        except BusyError:
            os.close(own)
            return None, False
        except TimeoutError:
            return None, True
        except OSError:
            return None, False


def _use(pid: int, status: str, cgroup: str, environ: bytes | None) -> Use:
    uid, name = _UID.search(status), _NAME.search(status)
    if uid is None:
        raise ValueError("no owner")
    place = place_of(cgroup)
    values = variables(environ) if environ is not None else {}
    return Use(
        pid=pid,
        uid=int(uid[1]),
        job_id=place.job_id,
        pod_uid=place.pod_uid,
        container_id=place.container_id,
        claimed_job_id=number(values.get("SLURM_JOB_ID")),
        account=word(values.get("SLURM_JOB_ACCOUNT")),
        partition=word(values.get("SLURM_JOB_PARTITION")),
        ranks=ranks_of(values),
        # An empty one is that of a process that is ending, or of the kernel.
        environ_read=bool(environ),
        service=name is not None and name[1].startswith(_SERVICE),
    )


def _start_ticks(text: str) -> int:
    """Field 22; the name before it may contain anything."""
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError("not a process")
    return int(fields[19])


def _began_s(start_ticks: int) -> float:
    """When a process began, on the monotonic clock; the kernel counts from the boot, sleep included."""
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return start_ticks / _TICKS_PER_S - asleep_s


def _text(name: str, process_fd: int) -> str:
    return _bytes(name, process_fd).decode("utf-8", "replace")


def _bytes(name: str, process_fd: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=process_fd)
    with open(fd, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        return file.read(_MAX_BYTES)
