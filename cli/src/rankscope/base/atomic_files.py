"""Files that are replaced as a whole: a reader sees the old content or the new one, never a part of it.

A temporary file beside the file is written and then renamed. If that fails, as on a full disk, it is removed and the old file
stays; the one of a killed writer stays until ``remove_unfinished``. No link is followed, because other users may write to the
folder.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

_NO_FSYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Errors of ``fsync`` on filesystems that do not support it."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    folder: int | None = None,
    mode: int = 0o666,
    shared: bool = False,
    sync: bool = True,
    overwrite: bool = True,
) -> None:
    """Write ``data`` to ``path``; see ``replacing``."""
    with replacing(path, folder=folder, mode=mode, shared=shared, sync=sync, overwrite=overwrite) as file:
        file.write(data)


@contextmanager
def replacing(
    path: str | os.PathLike[str],
    *,
    folder: int | None = None,
    mode: int = 0o666,
    shared: bool = False,
    sync: bool = True,
    overwrite: bool = True,
) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed to ``path`` when the block ends without an error, and else removed.

    Args:
        path: its folder must exist.
        folder: the opened folder that ``path`` is relative to.
        mode: permissions, less those that the umask withholds.
        shared: the file gets the read permissions of its folder instead.
        sync: flush the file to the disk, so that it survives a loss of power.
        overwrite: False: raise ``FileExistsError`` if ``path`` exists, also against a concurrent writer on another host.

    Raises ``OSError``.
    """
    parent, name = os.path.split(path)
    temporary = os.path.join(parent, f".{name}.{os.getpid()}-{os.urandom(6).hex()}")  # noqa: PTH118  relative to a descriptor
    handle = os.open(temporary, _NEW, 0o600 if shared else mode, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            if shared:
                share(handle, parent or ".", folder)
            yield file
            file.flush()
            if sync:
                sync_file(handle)
        if overwrite:
            os.replace(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            _take_free_name(temporary, path, folder)
    finally:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed writers of ``path``.

    The caller must hold a lock that all writers take: a temporary file of a running writer would be removed, too.
    """
    parent, name = os.path.split(path)
    unfinished = re.compile(rf"\.{re.escape(name)}\.[0-9]+-[0-9a-f]{{12}}")
    with suppress(OSError), os.scandir(parent or ".") as entries:
        for entry in entries:
            if unfinished.fullmatch(entry.name):
                with suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108  entries have paths of type str


def share(handle: int, parent: str | os.PathLike[str], folder: int | None = None) -> None:
    """Give an open file the read permissions of its folder ``parent``, which is relative to the opened ``folder``."""
    with suppress(OSError):  # a root-squashed mount may refuse
        os.fchmod(handle, 0o600 | (os.stat(parent, dir_fd=folder).st_mode & 0o044))


def sync_file(handle: int) -> None:
    """Flush an open file to the disk, if its filesystem supports that. Raises ``OSError``."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


def _take_free_name(temporary: str, path: str | os.PathLike[str], folder: int | None) -> None:
    """Give ``temporary`` the name ``path`` unless that exists.

    Without hard links, the file is empty for a moment, which readers handle as a damaged one. Raises ``OSError``.
    """
    try:
        os.link(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(path, _NEW, 0o600, dir_fd=folder))
        try:
            os.replace(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(path, dir_fd=folder)
            raise
