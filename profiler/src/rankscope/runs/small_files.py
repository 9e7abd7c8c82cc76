"""Small files of a run directory, replaced atomically or appended to.

Each rank writes only its own files, without locks. No function of this module is called on a training thread.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankscope.base.atomic_files import replace_file, share
from rankscope.base.regular_files import IrregularFileError
from rankscope.runs.paths import attempt_file, run_file
from rankscope.runs.records import AttemptInfo, RunInfo

_FRESH_SECONDS: Final = 10.0

_encoder = msgspec.json.Encoder()


def make_folder(folder: Path, *, parents: bool = True) -> None:
    """Create ``folder`` and its parents, each with the permissions of the folder that it is created in. Raises ``OSError``.

    Ranks may be different users with restrictive umasks. Every user with write access to a run must be able to add a rank, and
    every user with read access must be able to read all of it. With ``parents=False`` a removed run is not created again.
    """
    if folder.is_dir():
        return
    if parents:
        make_folder(folder.parent)
    for patience in (0.05, 0.2, None):
        try:
            folder.mkdir()
        except FileExistsError:
            return
        except PermissionError:
            # Another rank has just created the parent and is about to set its permissions.
            if patience is None or time.time() - folder.parent.stat().st_mtime > _FRESH_SECONDS:
                raise
            time.sleep(patience)
        else:
            break
    with suppress(OSError):  # a root-squashed mount may refuse; then the umask decides
        folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode))


def run_is_gone(run_dir: Path) -> bool:
    """Return whether the run was removed: writing now would create a folder that is no run. Raises ``OSError``."""
    try:
        run_file(run_dir).stat()
    except FileNotFoundError:
        return True
    return False


def write_shared(path: Path, data: bytes) -> None:
    """Write ``data`` atomically, readable by every user who can read the folder, which is created. Raises ``OSError``."""
    make_folder(path.parent)
    replace_file(path, data, shared=True)


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record as an indented JSON file; see ``write_shared``."""
    write_shared(path, _as_text(record))


def create_run(run: Path, info: RunInfo) -> bool:
    """Write ``run.json`` unless it exists. Returns whether this call created the run."""
    # The umask decides the run folder's permissions; everything inside inherits them.
    run.mkdir(parents=True, exist_ok=True)
    return create_record(run_file(run), info)


def create_attempt(run: Path, info: AttemptInfo) -> bool:
    """Write ``attempt.json`` unless it exists. Returns whether this call wrote it."""
    return create_record(attempt_file(run, info.attempt), info)


def create_record(path: Path, record: msgspec.Struct) -> bool:
    """Write a record as ``write_record``, unless the file exists. Returns whether this call wrote it. Raises ``OSError``."""
    make_folder(path.parent)
    if path.exists():
        return False
    try:
        replace_file(path, _as_text(record), shared=True, overwrite=False)
    except FileExistsError:
        return False
    return True


def _as_text(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(_encoder.encode(record), indent=2) + b"\n"


def overwrite_in_place(path: Path, data: bytes) -> None:
    """Write ``data`` over an existing small file, without new room on the disk. Raises ``OSError``.

    For a full disk only: a reader may see the old and the new content mixed, as a damaged file.
    """
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode) or os.pwrite(handle, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file for reading and appending, unbuffered; create it with the read permissions of its folder.

    For a folder that other users may write to: a link, a FIFO or a device in its place is rejected, and opening never blocks.
    The folder is not created. Raises ``OSError``.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise IrregularFileError(path)
    if not status.st_size:
        share(file.fileno(), path.parent)
    return file


def append_whole(path: Path, data: bytes) -> None:
    """Append ``data`` to a file that ``open_to_append`` opens, all of it or nothing. For a file with one writer.

    Raises ``OSError``.
    """
    # Closed before this returns, so that errors which a filesystem reports only then are raised, too.
    with open_to_append(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            _write_all(file, data)
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of ``data``. A full disk may accept a part; the next write then raises."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])
