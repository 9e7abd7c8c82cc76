"""Files of a run, opened without following links: a run may be written by others, and must not show files from elsewhere.

The folder of a run may itself be named through links; ``real_run`` resolves them once. Below it no link is followed, neither in
place of a file nor of a folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Final

from rankscope.base.errors import InputError
from rankscope.base.regular_files import LinkError, open_regular

_TRIES: Final = 5
"""Attempts to open a file that another process replaces at the same moment."""
_DELETED: Final = " (deleted)"
"""Suffix that the kernel adds to the path of an open file that was removed or replaced."""

_permitted: frozenset[str] = frozenset()


def confine(runs: Collection[Path]) -> None:
    """Refuse all other runs in this process from now on.

    A process that works for a server is given checked paths; another user could put a link in place of such a folder meanwhile.
    """
    global _permitted  # noqa: PLW0603  # a property of the process, like its user
    _permitted = frozenset(map(os.fspath, runs))


def real_run(path: Path, *, links: bool = True) -> Path:
    """Return the folder of a run without links in its path: ``path`` itself if it has none.

    Raises ``InputError`` for a path with links unless ``links``, and for a run that this process may not read (``confine``).
    """
    real = os.path.realpath(path)
    is_real = real == os.path.abspath(path)  # noqa: PTH100  # without a system call
    if not (links or is_real) or (_permitted and real not in _permitted):
        raise InputError(path, "a symbolic link is in its place, which is not followed")
    return path if is_real else Path(real)


def open_run_file(path: Path) -> BinaryIO:
    """Open a regular file of a run for reading; no part of ``path`` may be a link.

    Raises ``OSError``, also for FIFOs, sockets and devices.
    """
    for _ in range(_TRIES):
        file = open_regular(path, links=False)
        if _is_at(file.fileno(), path):
            return file
        file.close()
    raise LinkError(path)


def list_run_folder(path: Path) -> list[str]:
    """Return the names in a folder of a run; no part of ``path`` may be a link. Raises ``OSError``."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _is_at(folder, path):
            raise LinkError(path)
        return os.listdir(folder)  # noqa: PTH208  # of the descriptor, which has been checked
    finally:
        os.close(folder)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is at ``path`` itself, and not where a link in the path leads.

    The kernel's answer about the open file cannot be outrun by another process that changes the path meanwhile.
    """
    try:
        real = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # for thousands of files, Path costs more than the call
    except OSError:  # no procfs
        real = os.path.realpath(path)
    return real.removesuffix(_DELETED) == os.path.abspath(path)  # noqa: PTH100
