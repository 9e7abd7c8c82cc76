"""Locks on files: the kernel releases them when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path) -> int | None:
    """Lock ``path``, which is made if missing, until the returned descriptor is closed; ``None``: another process has it.

    Raises ``OSError`` where the file cannot be made or locked, as on some file servers.
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
    """Lock an open file without waiting; whether that worked. Raises ``OSError`` where files cannot be locked."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
