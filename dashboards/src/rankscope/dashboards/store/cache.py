"""Cache folder of derived data, kept across server restarts.

Each revision of a run has its own folder, named by a digest that covers the run's files. A folder appears atomically, also if two
servers write it at once. The least recently used folders are evicted first; a list that mentions a run does not use its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.base.version import VERSION
from rankscope.dashboards.words.inert import MAX_TEXT, sanitize

FORMAT: Final = 11
"""Format number; part of every key, as is the version, so that data of other code are ignored."""

MAX_BYTES: Final = 2 << 30
"""Default bound. Matrices of 1,024 ranks and 10,000 steps take 1 GB, most runs some MB; home folders often have a quota."""

LEFT_AFTER_S: Final = 24 * 3600.0
"""Age after which the unfinished folders of servers that were killed are deleted."""

_USED: Final = ".used"
"""File of each folder: its modification time is that of the last use, its content the size of the folder in bytes."""

CACHE_HINT: Final = "name another folder with --cache"
"""Advice for an unusable cache."""
_LITTLE_BYTES: Final = 4 << 20


def cache_folder() -> Path:
    """Return the user's cache folder, by the XDG Base Directory Specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if base.startswith("/") else "~/.cache").expanduser() / "rankscope" / "dashboard"


@dataclass(frozen=True, slots=True)
class Store:
    """Folders by key under ``root``, which is created with the first of them."""

    root: Path
    max_bytes: int = MAX_BYTES

    def find(self, key: str) -> Path | None:
        """Return the folder of ``key``, whose content no longer changes, and note that it is used; ``None`` if there is none."""
        folder = self.root / key
        try:
            os.utime(folder / _USED)
        except OSError:  # a read-only cache is usable, too
            return self.peek(key)
        return folder

    def peek(self, key: str) -> Path | None:
        """Return the folder of ``key`` as ``find``, without using it. A list of thousands of runs asks for each of them."""
        is_there = os.path.exists(f"{self.root}/{key}/{_USED}")  # noqa: PTH110  pathlib takes several times as long
        return self.root / key if is_there else None

    def new_folder(self) -> Path:
        """Return a new folder for unfinished data, which its user must delete. Raises ``OSError``."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".", dir=self.root))

    def publish(self, key: str, new: Path) -> Path:
        """Make the filled folder ``new`` the folder of ``key``, and make room. Raises ``OSError``."""
        (new / _USED).write_text(str(_bytes(new)), encoding="ascii")
        with contextlib.suppress(OSError):  # another server was first, with the same content
            new.rename(self.root / key)
        self._clear_leftovers()
        self._make_room(keep=key)
        return self.root / key

    def put(self, key: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of ``key``, filled by ``make``; an error of ``make`` leaves no folder. Raises ``OSError``."""
        new = self.new_folder()
        try:
            make(new)
            return self.publish(key, new)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _clear_leftovers(self) -> None:
        for path in self.root.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - max(file.stat().st_mtime for file in (path, *path.glob("*"))) > LEFT_AFTER_S:
                    shutil.rmtree(path)

    def _make_room(self, keep: str) -> None:
        folders: list[tuple[float, int, Path]] = []
        for folder in self.root.iterdir():
            with contextlib.suppress(OSError):
                if not folder.name.startswith("."):
                    folders.append(((folder / _USED).stat().st_mtime, _noted_bytes(folder), folder))
        room = self.max_bytes - sum(size for _, size, folder in folders if folder.name == keep)
        for _, size, folder in sorted(folders, reverse=True):
            if folder.name != keep and (room := room - size) < 0:
                shutil.rmtree(folder, ignore_errors=True)


def is_unfinished(folder: Path) -> bool:
    """Return whether a process may be writing there: the folder of a live run does not belong to one revision."""
    return folder.name.startswith(".")


def key_of(*parts: str) -> str:
    """Return the key of data that depend on ``parts`` and nothing else."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (str(FORMAT), VERSION, *parts):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def error_text(error: Exception, folder: Path) -> str:
    """Return an error in filling ``folder`` as one line for the user; a path in it may contain undecodable bytes."""
    reason = "no memory is left here" if isinstance(error, MemoryError) else str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return full_disk(folder) or sanitize(reason, MAX_TEXT)


def full_disk(folder: Path) -> str | None:
    """Return what to do about the disk of ``folder``, which is full; ``None`` if it is not."""
    free = shutil.disk_usage(folder.parent).free
    if free >= _LITTLE_BYTES:
        return None
    return f"the disk of {folder.parent} is full ({free / 2**20:.0f} MiB are left): make room there, or {CACHE_HINT}"


def _noted_bytes(folder: Path) -> int:
    """Return the size of a folder as noted when it was published: counting all files of thousands of folders takes seconds."""
    noted = (folder / _USED).read_bytes()[:20]
    return int(noted) if noted.isdigit() else _bytes(folder)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
