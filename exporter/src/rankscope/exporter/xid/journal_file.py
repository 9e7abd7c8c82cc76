"""The journal's file: JSON Lines that survive a kill, a full disk and a second exporter."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.locks import lock_file
from rankscope.exporter.xid.entry import SCHEMA, Snapshot, XidEntry

MAX_BYTES: Final = 8 * 1024 * 1024
_NAME: Final = "xids.jsonl"
_LOCK: Final = "xids.lock"

_decode: Final = msgspec.json.Decoder(Snapshot | XidEntry).decode
_encode: Final = msgspec.json.Encoder().encode


class JournalError(Exception):
    """The file cannot be written at present; the message says why, for a person."""


@dataclass(slots=True)
class Loaded:
    """What the file holds. ``skipped``: lines that were torn or damaged; not ``found``: there is no file."""

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(format=SCHEMA))
    entries: list[XidEntry] = field(default_factory=list)
    skipped: int = 0
    found: bool = True


class JournalFile:
    """One folder's journal. Whoever holds the lock writes; a second exporter may only read. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = 0
        self._path = folder / _NAME
        self._lock_fd: int | None = None
        self._size = 0

    @property
    def locked(self) -> bool:
        """Whether this process may write."""
        return self._lock_fd is not None

    def lock(self) -> None:
        """Make the folder and become its writer; raises ``JournalError``."""
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock_fd = lock_file(self.folder / _LOCK)
        except OSError as error:
            raise JournalError(f"{self.folder}: {error.strerror}") from error
        if self._lock_fd is None:
            raise JournalError(f"{self.folder}: another exporter writes there")

    def load(self) -> Loaded:
        """Everything in the file; damaged lines are left out and counted. Raises ``JournalError`` when it must not be touched."""
        try:
            content = self._read()
        except FileNotFoundError:
            return Loaded(found=False)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        loaded = Loaded()
        lines = content.split(b"\n")
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                one = _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                loaded.skipped += 1
                continue
            if isinstance(one, XidEntry):
                loaded.entries.append(one)
            elif one.format != SCHEMA:
                raise JournalError(f"{self._path}: has the format {one.format!r}, not {SCHEMA}: another version's; not touched")
            elif number == 0:
                loaded.snapshot = one
        self.lines = len(lines)
        self._size = len(content)
        return loaded

    def append(self, entries: Iterable[XidEntry]) -> bool:
        """Add lines, and have them on the disk when this returns.

        False when the file is not as this process left it: somebody removed or changed it, and only ``rewrite`` helps. Raises
        ``JournalError``, and then nothing was added.
        """
        data = b"".join(_encode(entry) + b"\n" for entry in entries)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        try:
            size = os.fstat(fd).st_size
            if size != self._size or size == 0:
                return False
            if os.pread(fd, 1, size - 1) != b"\n":  # torn by a kill: what follows must not be lost with it
                data = b"\n" + data
            _append(fd, data, size)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        finally:
            os.close(fd)
        self.lines += data.count(b"\n")
        self._size = size + len(data)
        return True

    def rewrite(self, snapshot: Snapshot, entries: Iterable[XidEntry]) -> None:
        """Replace everything at once; raises ``JournalError``, and then the old file is as it was."""
        lines = [_encode(snapshot), *map(_encode, entries)]
        fresh = self._path.with_name(f"{_NAME}.new")
        try:
            fresh.unlink(missing_ok=True)
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:  # noqa: PTH123  a descriptor, not a path
                file.write(b"\n".join(lines) + b"\n")
                file.flush()
                os.fdatasync(fd)
            fresh.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):  # the folder is gone, and the lock with it
                self.close()
            raise JournalError(f"{self._path}: {error.strerror}") from error
        self.lines, self._size = len(lines), sum(map(len, lines)) + len(lines)

    @property
    def too_large(self) -> bool:
        """Whether it should be rewritten before anything is added."""
        return self._size > MAX_BYTES // 2

    def close(self) -> None:
        """Let another exporter write."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _read(self) -> bytes:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123  a descriptor, not a path
            return file.read(MAX_BYTES)


def _append(fd: int, data: bytes, size: int) -> None:
    """All or nothing."""
    try:
        if os.write(fd, data) != len(data):  # a disk that just got full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301  as the next write would
        os.fdatasync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        raise
