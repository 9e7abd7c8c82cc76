"""File locks, which the kernel releases when the holding process exits or is killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path) -> int | None:
    """Lock ``path`` until the returned descriptor is closed; return None if another process holds the lock.

    A missing file is created. Raises ``OSError`` if the file cannot be created or locked, as on some network file systems.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        locked = try_lock(handle)
    except OSError:
        os.close(handle)
        raise
    if locked:
        return handle
    os.close(handle)
    return None


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; return False if another process holds the lock.

    Raises ``OSError`` if the file system does not support locks.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
