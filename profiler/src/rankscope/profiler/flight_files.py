"""Files that carry Flight Recorder dumps from a rank through its scratch folder into the run."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from rankscope.base.atomic_files import replacing
from rankscope.base.regular_files import open_regular
from rankscope.runs.small_files import make_folder

MAX_BYTES: Final = 256 * 1024 * 1024
"""Size above which a file is not taken for a dump."""
CRASH: Final = "crash"
"""Name of the dump written without a request, because an exception ended the script."""


DURATIONS: Final = "durations"
"""Name of the request for the durations of the last collectives; its completion says how long the dump took."""


def dump_file(scratch: Path, name: str, backend: str) -> Path:
    """Return the path of a rank's dump for the request ``name``; ``backend``: ``nccl`` or ``gloo``."""
    return scratch / f"flight-{name}-{backend}.pickle"


def dump_files(scratch: Path, name: str) -> dict[str, Path]:
    """Return the existing dumps of the request ``name``, by backend."""
    start = f"flight-{name}-"
    return {path.stem.removeprefix(start): path for path in sorted(scratch.glob(f"{start}*.pickle"))}


def done_file(scratch: Path, name: str) -> Path:
    """Return the path of the file that marks a rank's dumps as complete; it is empty, or holds the reason for no dump."""
    return scratch / f"flight-{name}.done"


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file in chunks, so that a reader of ``target`` sees all of it or nothing.

    Raises ``OSError``, also for a file that is larger than ``MAX_BYTES`` or not regular.
    """
    with open_regular(source, links=False) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes", str(source))
        make_folder(target.parent, parents=False)  # a removed run is not created again
        with replacing(target, shared=True) as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            # Keep the time of the dump: it shows how long the rank had waited.
            os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
