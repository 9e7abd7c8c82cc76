"""The spool folder: its default path, creation and ownership."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEM_SPOOL: Final = Path("/run/rankscope/spool")

SHARED_MODE: Final = 0o1777
"""Like /tmp: every user may create files, and only remove their own."""

PRIVATE_MODE: Final = 0o700

_KUBELET_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class SpoolFolder:
    """Path of the spool; ``private``: it must belong to this user alone, because the user did not choose it."""

    path: Path
    private: bool = False


def default_spool(environ: Mapping[str, str] = os.environ, *, make: bool = True) -> SpoolFolder:
    """Return ``/run/rankscope/spool`` if it is readable (with ``make``: if it exists or can be made), else a private folder.

    The private folder is ``$XDG_RUNTIME_DIR/rankscope/spool``, or ``/tmp/rankscope-UID/spool`` without that variable.
    """
    if make_spool(SpoolFolder(SYSTEM_SPOOL), mode=SHARED_MODE) if make else os.access(SYSTEM_SPOOL, os.R_OK | os.X_OK):
        return SpoolFolder(SYSTEM_SPOOL)
    runtime = environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "rankscope" if runtime else Path(f"/tmp/rankscope-{os.getuid()}")  # noqa: S108  see untrusted_reason
    return SpoolFolder(own / "spool", private=True)


def make_spool(folder: SpoolFolder, *, mode: int) -> bool:
    """Make the folder if it is missing, with ``mode``, or 0700 if it is private; return False if that fails.

    An empty folder as the kubelet makes it, in which only this user can write, gets ``mode``, too.
    """
    path = folder.path
    try:
        if path.is_dir():
            if mode == SHARED_MODE and not folder.private and _is_of_kubelet(path):
                path.chmod(mode)
            return True
        if folder.private:
            path.parent.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
            # Another user may have made the parent first; it is not used then.
            if untrusted_reason(path.parent) is not None:
                return False
        else:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir()
        path.chmod(PRIVATE_MODE if folder.private else mode)
    except OSError:
        return False
    return True


def _is_of_kubelet(path: Path) -> bool:
    """Return whether the kubelet may have made this folder for the ``hostPath`` of a pod: empty, of this user, mode 0755."""
    status = path.lstat()
    status_matches = (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == _KUBELET_MODE
    )
    return status_matches and next(path.iterdir(), None) is None


def untrusted_reason(*folders: Path) -> str | None:
    """Return why another user could put files into one of the folders, or replace it; None if no other user can.

    In /tmp, or where ``XDG_RUNTIME_DIR`` points, another user may have made the folder first, and could forge files of ranks.
    Raises ``OSError`` for a folder that is missing or cannot be accessed.
    """
    for folder in folders:
        status = folder.lstat()  # the owner of a link chooses its target
        if not stat.S_ISDIR(status.st_mode):
            return f"{folder}: a link or a file where a folder of this user should be"
        if status.st_uid != os.getuid():
            return f"{folder}: belongs to another user (uid {status.st_uid})"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{folder}: can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return None
