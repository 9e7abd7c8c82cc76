"""Where the ranks leave their text files, and how that folder comes to be."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SYSTEM_SPOOL: Final = Path("/run/rankscope/spool")

SHARED_MODE: Final = 0o1777
"""Like /tmp: every user's ranks may leave files, nobody may remove another's."""

PRIVATE_MODE: Final = 0o700


def default_spool(environ: Mapping[str, str] = os.environ) -> Path:
    """``/run/rankscope/spool`` where it exists or can be made, else a folder of this user alone.

    The latter is ``$XDG_RUNTIME_DIR/rankscope/spool``, or ``/tmp/rankscope-UID/spool`` without that variable.
    """
    if SYSTEM_SPOOL.is_dir() or make_spool(SYSTEM_SPOOL, mode=SHARED_MODE):
        return SYSTEM_SPOOL
    runtime = environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "rankscope" if runtime else Path(f"/tmp/rankscope-{os.getuid()}")  # noqa: S108  checked in make_spool
    return own / "spool"


def make_spool(folder: Path, *, mode: int) -> bool:
    """Make the folder if it is missing; False when that is not possible, or when its parent is another user's."""
    try:
        if folder.is_dir():
            return True
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        parent = folder.parent.lstat()
        # In /tmp somebody else may have been there first.
        if not stat.S_ISDIR(parent.st_mode) or (parent.st_uid != os.getuid() and not os.access(folder.parent, os.W_OK)):
            return False
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    except OSError:
        return False
    return True
