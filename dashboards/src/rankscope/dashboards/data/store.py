"""A folder of what was worked out from runs, so that nobody works it out twice: other workers, the next start of the server.

What belongs to one state of a run lies in a folder of its own, named by what the run's files hold. It appears whole or not at
all, also when two processes make it at once; what has not been used for longest goes first when there is too much.
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
from importlib.metadata import version
from pathlib import Path
from typing import Final

FORMAT: Final = 4
"""Part of every name, as the version is: what other code wrote is not looked at."""

MOST_BYTES: Final = 8 << 30
"""Matrices of 1,024 ranks and 10,000 steps take 1 GB."""

LEFT_AFTER_S: Final = 24 * 3600.0
"""What jobs left that were killed, and live runs that nobody has looked at for so long, make room."""

_USED: Final = ".used"
_SLOT: Final = ".slot-"

ELSEWHERE: Final = "set XDG_CACHE_HOME to another folder"
"""What to do about a cache that cannot be used."""


def cache_folder() -> Path:
    """Where the user's caches belong, by the XDG Base Directory Specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if base.startswith("/") else "~/.cache").expanduser() / "rankscope" / "dashboard"


@dataclass(frozen=True, slots=True)
class Store:
    """Folders by key, under ``root``, which is made when something is put there."""

    root: Path
    most_bytes: int = MOST_BYTES

    def find(self, key: str) -> Path | None:
        """The folder of ``key``; what is in it does not change any more."""
        folder = self.root / key
        try:
            os.utime(folder / _USED)
        except OSError:  # a cache that may only be read is of use, too
            return folder if (folder / _USED).exists() else None
        return folder

    def put(self, key: str, make: Callable[[Path], None]) -> Path:
        """The folder of ``key``, filled by ``make``; what it raises leaves nothing behind. Raises ``OSError``."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=self.root))
        try:
            make(new)
            (new / _USED).touch()
            with contextlib.suppress(OSError):  # somebody else was quicker, with the same
                new.rename(self.root / key)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        self._clear_leftovers()
        self._make_room(keep=key)
        return self.root / key

    def _clear_leftovers(self) -> None:
        """Of a lock that goes while somebody has it no harm comes: what two make of one key is the same."""
        for path in self.root.glob(".*"):
            with contextlib.suppress(OSError):
                last = max(file.stat().st_mtime for file in (path, *path.glob("*")))
                if path.name.startswith(_SLOT) or time.time() - last < LEFT_AFTER_S:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _make_room(self, keep: str) -> None:
        found: list[tuple[float, int, Path]] = []
        for folder in self.root.iterdir():
            with contextlib.suppress(OSError):
                if folder.name != keep and not folder.name.startswith("."):
                    found.append(((folder / _USED).stat().st_mtime, _bytes(folder), folder))
        left = self.most_bytes - _bytes(self.root / keep)
        for _, size, folder in sorted(found, reverse=True):
            left -= size
            if left < 0:
                shutil.rmtree(folder, ignore_errors=True)


def is_followed(folder: Path) -> bool:
    """Whether a process may be writing there: of a run that goes on, it is not of one state."""
    return folder.name.startswith(".")


def key_of(*parts: str) -> str:
    """The key of something that depends on ``parts`` and nothing else."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (str(FORMAT), version("rankscope"), *parts):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
