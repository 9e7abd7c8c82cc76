"""Owner, control groups and environment of the processes on the GPUs, read from ``/proc``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankscope.exporter.jobs.bounded_calls import BoundedCalls, TooManyCallsError
from rankscope.exporter.jobs.cgroups import parse_cgroups
from rankscope.exporter.jobs.environment import number, ranks_of, variables, word
from rankscope.exporter.jobs.party import GpuUse

MAX_PROCESSES: Final = 1024
_MAX_BYTES: Final = 64 * 1024
_READ_AGAIN_S: Final = 30.0  # an exec, or a launcher that moves processes between cgroups, changes these values
_ENVIRON_DEADLINE_S: Final = 0.2
_MAX_STUCK: Final = 4
_SLACK_S: Final = 2.0
# Inode of the initial PID namespace. Only there are the driver's pids certain to be valid for this process, too.
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_UID: Final = re.compile(r"^Uid:\s+[0-9]+\s+([0-9]+)", re.MULTILINE)
_NAME: Final = re.compile(r"^Name:\s+(.*)$", re.MULTILINE)
_SERVICE: Final = "nvidia-cuda-mps"  # the MPS server opens the GPU for its clients
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class _ProcessRecord(msgspec.Struct, frozen=True):
    start_ticks: int
    use: GpuUse
    read_s: float
    stuck: bool


class ProcessTable:
    """Cache of processes by pid, read again after 30 s; a reused pid is detected.

    Not thread-safe. The environment of a process may not be readable in time, because a thread stuck in the kernel locks its
    memory. Such a process is known by its other files, and not read again.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._processes: dict[int, _ProcessRecord] = {}
        self._bounded_calls = BoundedCalls(_ENVIRON_DEADLINE_S, max_stuck=_MAX_STUCK)

    def sees_all(self) -> bool:
        """Return whether the driver's pids are valid here: False in a container without the node's PID namespace."""
        try:
            return str((self._proc / "self" / "ns" / "pid").readlink()) == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def read(self, listed: Mapping[int, float], *, now_s: float | None = None) -> dict[int, GpuUse]:
        """Read each process; processes that ended are left out.

        ``listed`` maps a pid to the time at which the driver listed it. Times are monotonic.
        """
        now_s = time.monotonic() if now_s is None else now_s
        processes: dict[int, _ProcessRecord] = {}
        for pid in sorted(listed)[:MAX_PROCESSES]:
            try:
                processes[pid] = self._read(pid, listed[pid], now_s)
            except (OSError, ValueError):
                continue
        self._processes = processes
        return {pid: process.use for pid, process in processes.items()}

    def _read(self, pid: int, listed_s: float, now_s: float) -> _ProcessRecord:
        # The descriptor refers to this process even if its pid is reused.
        fd = os.open(self._proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            start_ticks = _start_ticks(_text("stat", fd))
            if _began_s(start_ticks) > listed_s + _SLACK_S:
                raise ValueError("the number is another process's by now")
            before = self._processes.get(pid)
            if (
                before is not None
                and before.start_ticks == start_ticks
                and (now_s - before.read_s < _READ_AGAIN_S or before.stuck)
            ):
                return before
            status = _text("status", fd)
            environ, stuck = self._environ(fd)
            return _ProcessRecord(start_ticks, _use(pid, status, _text("cgroup", fd), environ), now_s, stuck)
        finally:
            os.close(fd)

    def _environ(self, process_fd: int) -> tuple[bytes | None, bool]:
        own = os.dup(process_fd)  # the call may outlive the caller's descriptor

        def read() -> bytes:
            try:
                return _bytes("environ", own)
            finally:
                os.close(own)

        try:
            return self._bounded_calls.call(read), False
        except TooManyCallsError:
            os.close(own)
            return None, False
        except TimeoutError:
            return None, True
        except OSError:
            return None, False


def _use(pid: int, status: str, cgroup: str, environ: bytes | None) -> GpuUse:
    uid, name = _UID.search(status), _NAME.search(status)
    if uid is None:
        raise ValueError("no owner")
    identity = parse_cgroups(cgroup)
    values = variables(environ) if environ is not None else {}
    return GpuUse(
        pid=pid,
        uid=int(uid[1]),
        job_id=identity.job_id,
        sluid=identity.sluid,
        pod_uid=identity.pod_uid,
        container_id=identity.container_id,
        claimed_job_id=number(values.get("SLURM_JOB_ID")),
        account=word(values.get("SLURM_JOB_ACCOUNT")),
        partition=word(values.get("SLURM_JOB_PARTITION")),
        ranks=ranks_of(values),
        # The environment of an exiting process, or of a kernel thread, is empty.
        environ_read=bool(environ),
        service=name is not None and name[1].startswith(_SERVICE),
    )


def _start_ticks(text: str) -> int:
    """Return field 22 of ``/proc/PID/stat``, in ticks; the process name before it may contain any character."""
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError("not a process")
    return int(fields[19])


def _began_s(start_ticks: int) -> float:
    """Return the monotonic start time of a process; the kernel counts from boot, suspend included."""
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return start_ticks / _TICKS_PER_S - asleep_s


def _text(name: str, process_fd: int) -> str:
    return _bytes(name, process_fd).decode("utf-8", "replace")


def _bytes(name: str, process_fd: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=process_fd)
    with open(fd, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        return file.read(_MAX_BYTES)
