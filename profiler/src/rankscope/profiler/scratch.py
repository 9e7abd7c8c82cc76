"""Scratch folders on local memory, shared by a rank and its helper, and removal of folders that killed processes left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from rankscope.base.locks import try_lock

LOCAL_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # the usual place for memory shared between processes
_LOCK_FILE: Final = "lock"
_SAFE_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of ``os.open`` for world-writable folders: never follow a link, never wait for the other end of a pipe."""
_RECORDED_FILE: Final = "recorded"
_SPOOLED_FILE: Final = "spooled"
_UNWRITTEN_FILE: Final = "unwritten"
_UNRECORDED_FILE: Final = "unrecorded"
_UNTRAINED_FILE: Final = "untrained"
ABANDONED_SECONDS: Final = 600.0
ABANDONED_ON_DISK_SECONDS: Final = 86_400.0
"""Longer than ``ABANDONED_SECONDS``, because a trace on disk has no lock and a lagging helper reads it late."""
_JOB_LINK: Final = "job"
MIN_SCRATCH_BYTES: Final = 16 * 1024 * 1024
"""Smallest free space for a folder without traces: it takes 4 KiB, and a dump of the Flight Recorder some megabytes."""
MIN_FREE_BYTES: Final = 256 * 1024 * 1024
"""Smallest free space per rank of the host for a trace: a trace takes tens of megabytes, and training needs the rest."""


def make_scratch(name: str, parent: str | None = None) -> Path:
    """Make a private folder: in ``parent`` if it exists on this host, else in /dev/shm, else in the temporary folder.

    One that is full or read-only is passed over. The launcher whose folder is ``parent`` finds the new one through a link.
    Raises ``OSError``.
    """
    folder = _make_private(name, parent)
    job = None if parent is None else Path(parent)
    if job is not None and job.is_dir() and folder.parent != job:
        with suppress(OSError):
            (folder / _JOB_LINK).symlink_to(job.absolute())
            (job / folder.name).symlink_to(folder)
    return folder


def _make_private(name: str, parent: str | None) -> Path:
    failed: OSError | None = None
    for base in _bases(parent):
        try:
            return Path(tempfile.mkdtemp(prefix=_name_in(base, parent, f"{name}-"), dir=base))
        except OSError as error:
            failed = failed or error
    raise failed or FileNotFoundError(errno.ENOENT, "there is no such folder", str(LOCAL_MEMORY))


def _bases(parent: str | None) -> list[Path]:
    """Return the folders for files that a rank shares with its helper, the best first: those that are full come last."""
    bases = [LOCAL_MEMORY] if parent is None else [Path(parent), LOCAL_MEMORY]
    with suppress(OSError):  # there may be no folder for temporary files
        bases.append(Path(tempfile.gettempdir()))
    usable = [base for base in bases if os.access(base, os.W_OK | os.X_OK)]
    return sorted(usable, key=_is_full)


def _is_full(base: Path) -> bool:
    try:
        return _free(base) < MIN_SCRATCH_BYTES
    except OSError:
        return True


def _name_in(base: Path, parent: str | None, name: str) -> str:
    """Return ``name`` with the prefix by which ``sweep`` knows it, unless ``base`` is the folder ``parent`` of a launcher."""
    return name if parent is not None and base == Path(parent) else f"{_prefix()}{name}"


def room_for_trace(scratch: Path, ranks: int) -> Path | None:
    """Return the folder with room for traces: ``scratch``, else the temporary folder on disk, else ``None``.

    ``ranks``: number of ranks on this host, which all write a trace at the same moment. Containers often have little /dev/shm.
    Raises ``OSError``.
    """
    if _free(scratch) >= ranks * MIN_FREE_BYTES:
        return scratch
    disk = Path(tempfile.gettempdir())
    return disk if _free(disk) >= 4 * ranks * MIN_FREE_BYTES else None


def trace_folder(scratch: Path, ranks: int) -> Path | None:
    """Return a folder for one trace: ``scratch`` or a new private one, see ``room_for_trace``. Raises ``OSError``."""
    base = room_for_trace(scratch, ranks)
    if base is None or base == scratch:
        return base
    return Path(tempfile.mkdtemp(prefix=f"{_prefix()}trace-", dir=base))


def flight_prefix(parent: str | None, name: str) -> Path:
    """Return the path prefix for a file ``PREFIX + rank`` that torch writes and never removes.

    The file is where ``make_scratch`` would make a folder.
    """
    base = next(iter(_bases(parent)), LOCAL_MEMORY)
    return base / _name_in(base, parent, f"flight-{name}-")


def is_flight_file(path: Path) -> bool:
    """Return whether the name of this file comes from ``flight_prefix``."""
    return path.name.startswith(("flight-", f"{_prefix()}flight-"))


def remove_trace(path: Path, scratch: Path) -> None:
    """Remove a trace, if it exists, and the folder that ``trace_folder`` made for it. Never raises ``OSError``."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    if path.parent != scratch:
        with suppress(OSError):
            path.parent.rmdir()


def _free(folder: Path) -> int:
    room = os.statvfs(folder)
    # A filesystem in memory without a limit reports no size at all.
    return room.f_bavail * room.f_frsize if room.f_blocks else sys.maxsize


def _prefix() -> str:
    return f"rankscope-{os.getuid()}-"


def hold(scratch: Path) -> int:
    """Mark ``scratch`` as in use until the returned file handle is closed or this process ends, even by SIGKILL.

    Raises ``OSError``.
    """
    handle = os.open(scratch / _LOCK_FILE, os.O_RDWR | os.O_CREAT | _SAFE_FLAGS, 0o600)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def note_recorded(scratch: Path, attempt: int, rank: int) -> None:
    """Record for the launcher, if ``scratch`` is in its folder, that a rank of this job is recorded. Never raises ``OSError``."""
    _note(scratch, f"{_RECORDED_FILE}-{attempt}-{rank}")


def note_spooled(scratch: Path, name: str) -> None:
    """Record a rank's spool file (``*.prom``) for the launcher and for a replacement helper. Never raises ``OSError``."""
    _note(scratch, name)
    with suppress(OSError, UnicodeEncodeError):
        (scratch / _SPOOLED_FILE).write_text(name)


def forget_spooled(scratch: Path, name: str) -> None:
    """Delete the record of a removed spool file: the next file of that name is another job's. Never raises ``OSError``."""
    with suppress(OSError):
        (scratch / _SPOOLED_FILE).unlink(missing_ok=True)
        job = _job_of(scratch)
        if _is_launchers(job):
            (job / name).unlink(missing_ok=True)


def spooled_before(scratch: Path) -> str | None:
    """Return the spool file name that a killed predecessor of this helper recorded last. Never raises ``OSError``."""
    with suppress(OSError):
        return (scratch / _SPOOLED_FILE).read_text()
    return None


def _note(scratch: Path, name: str) -> None:
    with suppress(OSError):
        job = _job_of(scratch)
        if _is_launchers(job):
            (job / name).touch()


def _job_of(scratch: Path) -> Path:
    """Return the folder of the launcher, if there is one; see ``make_scratch``."""
    with suppress(OSError):
        return (scratch / _JOB_LINK).readlink()
    return scratch.parent


def note_unrecorded(job: str, reason: str, *, trained: bool) -> None:
    """Leave for the launcher, whose folder is ``job``, the reason why this process recorded no step. Raises ``OSError``.

    ``trained``: there was a sign of training. Others start the ranks, load data, or evaluate.
    """
    _note_reason(Path(job), _UNRECORDED_FILE if trained else _UNTRAINED_FILE, reason)


def note_unwritten(scratch: Path, reason: str) -> None:
    """Leave for the launcher, if there is one, the reason why nothing of this rank could be written. Never raises ``OSError``."""
    with suppress(OSError):
        _note_reason(_job_of(scratch), _UNWRITTEN_FILE, reason)


def unrecorded_reasons(job: Path) -> list[str]:
    """Return the reasons why the processes that trained recorded no step, else all processes, without duplicates.

    Raises ``OSError``.
    """
    return _reasons(job, _UNRECORDED_FILE) or _reasons(job, _UNTRAINED_FILE)


def unwritten_reasons(job: Path) -> list[str]:
    """Return the reasons why nothing of ranks of the job could be written, without duplicates. Raises ``OSError``."""
    return _reasons(job, _UNWRITTEN_FILE)


def _note_reason(job: Path, name: str, reason: str) -> None:
    if _is_launchers(job):
        (job / f"{name}-{os.getpid()}").write_text(reason)


def _reasons(job: Path, name: str) -> list[str]:
    return sorted({file.read_text(errors="replace") for file in job.glob(f"{name}-*")})


def _is_launchers(folder: Path) -> bool:
    """Return whether a launcher made ``folder``: it has a lock and is not world-writable. Raises ``OSError``."""
    return not folder.stat().st_mode & stat.S_IWOTH and (folder / _LOCK_FILE).exists()


def recorded_ranks(job: Path) -> frozenset[tuple[int, int]]:
    """Return attempt and rank of all ranks whose folders were in ``job`` and that were recorded in the run directory."""
    names = [entry.name.split("-") for entry in job.glob(f"{_RECORDED_FILE}-*-*")]
    return frozenset((int(attempt), int(rank)) for _, attempt, rank in names)


def spooled(job: Path) -> list[str]:
    """Return the spool file names of all ranks, of every attempt, whose folders were in ``job``. Raises ``OSError``."""
    return [entry.name for entry in job.iterdir() if entry.suffix == ".prom"]


def sweep() -> None:
    """Remove old folders of this user that no process holds: their users were killed. Never raises ``OSError``."""
    _sweep(LOCAL_MEMORY, older_than=ABANDONED_SECONDS)
    _sweep(Path(tempfile.gettempdir()), older_than=ABANDONED_ON_DISK_SECONDS)


def is_abandoned(scratch: Path) -> bool:
    """Return whether ``scratch`` was held before and no process holds it now."""
    lock = scratch / _LOCK_FILE
    return lock.exists() and not _is_locked(lock)


def _sweep(base: Path, *, older_than: float) -> None:
    limit = time.time() - older_than
    with suppress(OSError):
        for folder in base.glob(f"{_prefix()}*"):
            with suppress(OSError):
                _sweep_one(folder, limit)


def _sweep_one(folder: Path, limit: float) -> None:
    status = folder.lstat()
    # Any user may make a folder of this name; as root, this process could be led to remove or open other users' files.
    if status.st_uid != os.getuid() or status.st_mtime >= limit:
        return
    if stat.S_ISREG(status.st_mode):  # see ``flight_prefix``; the helper that would have collected it has exited
        folder.unlink()
    elif stat.S_ISDIR(status.st_mode):
        locks = [*folder.glob(_LOCK_FILE), *folder.glob(f"*/{_LOCK_FILE}")]
        if not any(_is_locked(lock) for lock in locks):
            shutil.rmtree(folder, ignore_errors=True)


def _is_locked(lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_RDONLY | _SAFE_FLAGS)
    except OSError:
        return False
    try:
        return not try_lock(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
