"""The jobs of Slurm on this node: a file each, which the prolog (``exporter/slurm/prolog.sh``) writes and the epilog removes."""

from __future__ import annotations

import itertools
import os
import re
import stat
from pathlib import Path
from typing import Final

from rankscope.base.process import boot_id
from rankscope.exporter.jobs.environment import number, word
from rankscope.exporter.jobs.party import Allocation, PartyIdentity, SchedulerDevice
from rankscope.exporter.spool.file import read_regular
from rankscope.exporter.spool.series import RejectedError

DEFAULT_FOLDER: Final = Path("/run/rankscope/jobs")
STAMP: Final = ".slurm"
"""Marker file: the prolog runs on this node, so every Slurm job has a file in this folder."""

_JOB_FILE: Final = re.compile(r"job-[0-9]{1,10}")
_MAX_FILES: Final = 4096
_MAX_BYTES: Final = 16 * 1024
_MIG_OLD: Final = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/([0-9]{1,3})/([0-9]{1,3})")
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{36}")
_NOTHING: Final = frozenset({"", "NoDevFiles", "none", "void", "-1"})
_RANGE: Final = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


class SlurmError(Exception):
    """The folder cannot be read or trusted; the message names the folder and the reason."""


class SlurmFolder:
    """The folder of the job files.

    It must belong to root or to this user (to any user if ``explicit``), and must not be writable for its group or for others.
    Only files of its owner or of root count.
    """

    def __init__(self, path: Path, *, explicit: bool, proc: Path = Path("/proc")) -> None:
        self.path = path
        self._explicit = explicit
        self._proc = proc

    def read(self) -> tuple[Allocation, ...] | None:
        """Return all jobs, including those without GPUs; None if the prolog has never run.

        Raises:
            SlurmError: the folder cannot be read, or is not trusted.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SlurmError(f"{self.path}: {error.strerror}") from error
        try:
            return self._read(fd)
        except OSError as error:
            raise SlurmError(f"{self.path}: {error.strerror}") from error
        finally:
            os.close(fd)

    def _read(self, folder_fd: int) -> tuple[Allocation, ...] | None:
        owner = os.fstat(folder_fd)
        if not self._explicit and owner.st_uid not in (0, os.getuid()):
            raise SlurmError(
                f"{self.path}: belongs to uid {owner.st_uid}, not to root; name it with --jobs.slurm-dir to trust it"
            )
        if owner.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SlurmError(f"{self.path}: can be written by others (mode {stat.S_IMODE(owner.st_mode):o})")
        this_boot = boot_id(self._proc)
        prolog_ran = False
        allocations = []
        with os.scandir(folder_fd) as entries:
            for entry in itertools.islice(entries, _MAX_FILES):
                prolog_ran = prolog_ran or entry.name == STAMP
                if not _JOB_FILE.fullmatch(entry.name):
                    continue
                allocation = _allocation(entry.name, folder_fd, this_boot, trusted=frozenset({0, owner.st_uid}))
                if allocation is not None and f"job-{allocation.identity.job_id}" == entry.name:
                    prolog_ran = True
                    allocations.append(allocation)
        return tuple(sorted(allocations, key=lambda allocation: int(allocation.identity.job_id or 0))) if prolog_ran else None


def _allocation(name: str, folder_fd: int, this_boot: str, *, trusted: frozenset[int]) -> Allocation | None:
    """Return the job of a regular file of a trusted user; None for any other file.

    A job whose file cannot be read holds a GPU that cannot be identified, so that none counts as free.
    """
    try:
        content, status = read_regular(name, folder_fd, _MAX_BYTES)
    except FileNotFoundError:  # the job has ended
        return None
    except RejectedError as error:
        job_id = number(name.removeprefix("job-"))
        return Allocation(PartyIdentity(job_id=job_id), (SchedulerDevice(),)) if error.reason == "unreadable" else None
    return parse(content.decode("utf-8", "replace"), this_boot) if status.st_uid in trusted else None


def parse(text: str, this_boot: str) -> Allocation | None:
    """Parse a job's file, one Slurm variable per line; None without a job id, or for a job of another boot than ``this_boot``."""
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    job_id = number(values.get("SLURM_JOB_ID"))
    if job_id is None or (this_boot and values.get("BOOT_ID", "") not in ("", this_boot)):
        return None
    uid = number(values.get("SLURM_JOB_UID"))
    identity = PartyIdentity(
        job_id=job_id,
        sluid=word(values.get("SLURM_JOB_SLUID")),
        user=word(values.get("SLURM_JOB_USER")),
        uid=int(uid) if uid is not None else None,
        account=word(values.get("SLURM_JOB_ACCOUNT")),
        partition=word(values.get("SLURM_JOB_PARTITION")),
    )
    device_lists = [devices_of(values.get(name, "")) for name in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")]
    # Prefer uuids: they are exact, and only they can name a MIG device. Numbers outside a job's device cgroup are the node's.
    exact = [devices for devices in device_lists if all(device.uuid for device in devices) and devices]
    return Allocation(identity, next((devices for devices in (*exact, *device_lists) if devices), ()))


def devices_of(text: str) -> tuple[SchedulerDevice, ...]:
    """Parse a list such as ``0,2-3`` or ``GPU-…,MIG-…``; any other item is a device that cannot be identified."""
    devices: list[SchedulerDevice] = []
    for piece in text.split(","):
        token = piece.strip()
        if old := _MIG_OLD.fullmatch(token):
            devices.append(SchedulerDevice(uuid=old[1], gpu_instance=int(old[2]), compute_instance=int(old[3])))
        elif _UUID.fullmatch(token):
            devices.append(SchedulerDevice(uuid=token))
        elif between := _RANGE.fullmatch(token):
            first = int(between[1])
            devices += [SchedulerDevice(number=number) for number in range(first, int(between[2] or first) + 1)]
        elif token not in _NOTHING:
            devices.append(SchedulerDevice())
    return tuple(dict.fromkeys(devices))
