"""The spool as a process sees it, for pods that cannot share a folder with the exporter: ``/proc/PID/root/…``.

The owner of the process controls these folders. So no link is followed, no file system that could hang is accessed, and only
files of the user that the process runs as count.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankscope.exporter.source import FleetState

MAX_PROCESSES: Final = 256
_MAX_MOUNTS_BYTES: Final = 1024 * 1024
# Other file systems (network, FUSE) can block a read for as long as their owner likes.
_LOCAL_FILESYSTEMS: Final = frozenset(
    {"btrfs", "ext2", "ext3", "ext4", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs"}
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ProcessFolder:
    """An open folder, and the uids whose files count there; None for all users."""

    fd: int
    owners: frozenset[int] | None


@dataclass(slots=True)
class Opened:
    """Opened folders, and the number of refused ones by reason."""

    folders: list[ProcessFolder] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ProcessFolders:
    """The folders of the processes that ``pids`` returns, as pids of this process's PID namespace."""

    pids: Callable[[], Iterable[int]]
    proc: Path = Path("/proc")

    @contextlib.contextmanager
    def opened(self, path: Path, *, besides: int) -> Iterator[Opened]:
        """Open each distinct folder that a process has at ``path``, except the one already open as ``besides``."""
        with contextlib.ExitStack() as stack:
            result, path = Opened(), path.absolute()
            shared = _identity(besides)
            found: dict[tuple[int, int], tuple[int, set[int]]] = {}
            for pid in itertools.islice(sorted(set(self.pids())), MAX_PROCESSES):
                try:
                    fd, uid = self._open(pid, path)
                except (FileNotFoundError, ProcessLookupError):
                    continue  # the process has ended, or has no spool
                except _RefusedError as error:
                    result.refused[error.reason] += 1
                    continue
                except OSError:
                    result.refused["process_unreadable"] += 1
                    continue
                stack.callback(os.close, fd)
                if (identity := _identity(fd)) != shared:
                    found.setdefault(identity, (fd, set()))[1].add(uid)
            result.folders = [ProcessFolder(fd, frozenset(uids)) for fd, uids in found.values()]
            yield result

    def _open(self, pid: int, path: Path) -> tuple[int, int]:
        process_fd = os.open(self.proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The descriptor refers to this process even if its pid is reused.
            uid = _uid(_text("status", process_fd))
            if not _is_local(path, _text("mountinfo", process_fd)):
                raise _RefusedError("process_not_local")
            fd = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process_fd)
        finally:
            os.close(process_fd)
        return _open_below(fd, path), uid


class _RefusedError(Exception):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def users_of_gpu(state: FleetState, uuid: str, proc: Path = Path("/proc")) -> frozenset[int]:
    """Return the uids of the processes that have this GPU open; empty if the driver or the kernel shows none."""
    uids = set()
    for gpu in state.gpus:
        if gpu.identity.uuid == uuid and gpu.sample is not None:
            for pid in itertools.islice({process.pid for process in gpu.sample.processes or ()}, MAX_PROCESSES):
                with contextlib.suppress(OSError, _RefusedError):
                    uids.add(_uid((proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")))
    return frozenset(uids)


def mount_points(mountinfo: str) -> frozenset[str]:
    """Return the mount points in the text of ``/proc/PID/mountinfo``."""
    fields = (line.split(" ") for line in mountinfo.splitlines())
    return frozenset(_unescaped(one[4]) for one in fields if len(one) > 4)


def pids_on_gpus(state: FleetState) -> frozenset[int]:
    """Return the pids of the processes that have a GPU open, according to the driver."""
    samples = (gpu.sample for gpu in state.gpus if gpu.sample is not None)
    return frozenset(process.pid for sample in samples for process in sample.processes or ())


def _open_below(root_fd: int, path: Path) -> int:
    """Open a folder below ``root_fd``, and close ``root_fd``. No link is followed, because it may lead outside."""
    fd = root_fd
    try:
        for part in path.parts[1:]:
            fd, before = os.open(part, _FOLDER, dir_fd=fd), fd
            os.close(before)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def _is_local(path: Path, mountinfo: str) -> bool:
    """Return whether all file systems on the way to ``path`` are local, so that reading cannot block."""
    above = {str(path), *map(str, path.parents)}
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) <= 4 or not after:
            return False
        mount_point = _unescaped(fields[4])
        if mount_point in above and after.split(" ", 1)[0] not in _LOCAL_FILESYSTEMS:
            return False
    return True


def _unescaped(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def _uid(status: str) -> int:
    match = re.search(r"^Uid:\s+[0-9]+\s+([0-9]+)", status, re.MULTILINE)
    if match is None:
        raise _RefusedError("process_unreadable")
    return int(match[1])


def _text(name: str, process_fd: int) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process_fd)
    with open(fd, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        return file.read(_MAX_MOUNTS_BYTES).decode("utf-8", "replace")


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
