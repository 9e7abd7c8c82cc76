"""Reading of files that other users may have put in place: opening one never blocks, and has an end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class IrregularFileError(OSError):
    """A path names no regular file but a FIFO, a socket or a device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file", os.fspath(path))


class LinkError(OSError):
    """A path is, or has in it, a symbolic link that is not followed."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ELOOP, "a symbolic link, which is not followed", os.fspath(path))


def open_regular(path: Path, *, links: bool = True) -> BinaryIO:
    """Open a regular file, or a link to one unless ``links`` is false, for reading.

    Raises ``OSError``, also for other kinds of files: a FIFO without a writer would block for ever, and a device may have no end.
    Folders in the path may be links; a file of a run is opened with ``rankscope.runs.run_files.open_run_file``.
    """
    try:
        follow = 0 if links else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | follow)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise IrregularFileError(path) from error
        if error.errno == errno.ELOOP and not links:
            raise LinkError(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) if stat.S_ISDIR(mode) else IrregularFileError(path)
    return os.fdopen(descriptor, "rb")
