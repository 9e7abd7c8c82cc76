"""The journal's file: JSON Lines, safe against a kill, a full disk and a second exporter."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.atomic_files import remove_unfinished, replace_file
from rankscope.base.formats import unread_format
from rankscope.base.locks import lock_file
from rankscope.exporter.xid.entry import SCHEMA, JournalSnapshot, XidEntry

MAX_BYTES: Final = 8 * 1024 * 1024
FILE_NAME: Final = "xids.jsonl"
_LOCK: Final = "xids.lock"

_decode: Final = msgspec.json.Decoder(JournalSnapshot | XidEntry).decode
_encode: Final = msgspec.json.Encoder().encode


class JournalError(Exception):
    """The file cannot be read or written now; the message describes why."""


@dataclass(slots=True)
class LoadedJournal:
    """Content of the file. ``skipped``: numbers of the damaged lines, from 1; ``exists``: the file exists."""

    path: Path
    snapshot: JournalSnapshot = field(default_factory=lambda: JournalSnapshot(format=SCHEMA))
    entries: list[XidEntry] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    exists: bool = True


class JournalFile:
    """Journal file of one folder. Only the holder of the lock writes; a second exporter may only read. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = 0
        self._path = folder / FILE_NAME
        self._lock_fd: int | None = None
        self._size = 0

    @property
    def locked(self) -> bool:
        """True if this process holds the lock and may write."""
        return self._lock_fd is not None

    def lock(self) -> None:
        """Create the folder and lock it for writing; raises ``JournalError``."""
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock_fd = lock_file(self.folder / _LOCK)
        except OSError as error:
            raise JournalError(f"{self.folder}: {error.strerror}") from error
        if self._lock_fd is None:
            raise JournalError(f"{self.folder}: another exporter writes there")
        remove_unfinished(self._path)

    def load(self) -> LoadedJournal:
        """Read the file; damaged lines are skipped and counted.

        Raises:
            JournalError: the file cannot be read, or has another schema version and must not be changed.
        """
        try:
            content = self._read()
        except FileNotFoundError:
            return LoadedJournal(self._path, exists=False)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        loaded = LoadedJournal(self._path)
        lines = content.split(b"\n")
        for number, line in enumerate(lines):
            if not line:
                continue
            try:
                record = _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                loaded.skipped.append(number + 1)
                continue
            if isinstance(record, XidEntry):
                loaded.entries.append(record)
            elif record.format != SCHEMA:
                raise JournalError(f"{self._path}: not touched: {unread_format(record.format, SCHEMA)}")
            elif number == 0:
                loaded.snapshot = record
        self.lines = len(lines)
        self._size = len(content)
        return loaded

    def append(self, entries: Iterable[XidEntry]) -> bool:
        """Append entries and sync them to disk.

        Returns False if another process removed or changed the file; only ``rewrite`` helps then. If it raises ``JournalError``,
        nothing was added.
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
            if os.pread(fd, 1, size - 1) != b"\n":  # a kill left a partial line, which must not corrupt the next one
                data = b"\n" + data
            _append(fd, data, size)
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
        finally:
            os.close(fd)
        self.lines += data.count(b"\n")
        self._size = size + len(data)
        return True

    def rewrite(self, snapshot: JournalSnapshot, entries: Iterable[XidEntry]) -> None:
        """Replace the file atomically. If it raises ``JournalError``, the old file is unchanged."""
        lines = [_encode(snapshot), *map(_encode, entries)]
        try:
            replace_file(self._path, b"\n".join(lines) + b"\n", mode=0o600)
        except OSError as error:
            if isinstance(error, FileNotFoundError):  # the folder was removed, and with it the lock file
                self.close()
            raise JournalError(f"{self._path}: {error.strerror}") from error
        self.lines, self._size = len(lines), sum(map(len, lines)) + len(lines)

    @property
    def too_large(self) -> bool:
        """True if the file should be rewritten instead of appended to."""
        return self._size > MAX_BYTES // 2

    def close(self) -> None:
        """Release the lock, so that another exporter can write."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _read(self) -> bytes:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123  a descriptor, not a path
            return file.read(MAX_BYTES)


def _append(fd: int, data: bytes, size: int) -> None:
    """Append all of ``data`` to a file of ``size`` bytes and sync it, or restore the file and raise ``OSError``."""
    try:
        if os.write(fd, data) != len(data):  # the disk became full during the write
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301  the error of the next write
        os.fdatasync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
        raise
