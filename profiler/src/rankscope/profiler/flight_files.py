"""Files through which Flight Recorder dumps go from a rank, by way of its scratch folder, into the run."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Final

from rankscope.runs.writer import make_folder, replacing

MAX_BYTES: Final = 256 * 1024 * 1024
"""A larger file is no dump."""
CRASH: Final = "crash"
"""Name of a dump that nobody asked for: an exception ended the script."""


def dump_file(scratch: Path, name: str, backend: str) -> Path:
    """Where a rank leaves the dump that ``name`` asked for; ``backend``: ``nccl`` or ``gloo``."""
    return scratch / f"flight-{name}-{backend}.pickle"


def dump_files(scratch: Path, name: str) -> dict[str, Path]:
    """Backend to file of all that is there."""
    start = f"flight-{name}-"
    return {path.stem.removeprefix(start): path for path in sorted(scratch.glob(f"{start}*.pickle"))}


def done_file(scratch: Path, name: str) -> Path:
    """What a rank leaves when it has written all it has; empty, or why there is nothing."""
    return scratch / f"flight-{name}.done"


def write_file(path: Path, data: bytes) -> None:
    """Write a file of the scratch folder at once. Raises ``OSError``."""
    temporary = path.with_suffix(".part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file so that a reader of ``target`` sees all of it or nothing, in little memory.

    Raises ``OSError``, also for what is too large or no regular file.
    """
    handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(source))
        if found.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes", str(source))
        make_folder(target.parent, parents=False)  # a run that was removed is not made again
        with replacing(target) as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            # How long a rank had waited is seen by when its dump was written, not by when it was found.
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
