"""Full disks: a simulation for one process, and small file systems."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def disk_with_room_for(file_bytes: int) -> Iterator[None]:
    """Limit every file of this process to this size; a write stores what still fits, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """Yield a folder on a file system of this size; where this user may not mount one, an ordinary folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(folder)]
    subprocess.run(mount, capture_output=True, check=False)
    yield folder
    # A test may have mounted it again, read-only.
    while os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)
