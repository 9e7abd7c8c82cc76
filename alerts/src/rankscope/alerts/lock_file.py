"""A file that one process keeps to itself; the kernel gives it back however that process ends. Needs no extra."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def lock_file(path: Path) -> int | None:
    """Lock ``path``, made if it is not there, until the descriptor is closed; ``None``: another one has it.

    Raises ``OSError`` where there can be no such file, or no lock, as on some file servers.
    """
    number = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(number)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return number
