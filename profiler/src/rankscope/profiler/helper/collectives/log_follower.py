"""Log of NCCL Inspector that its process is still writing: read the new records, and release the disk space of those read.

The plugin opens its log once, without ``O_APPEND``, and writes at its own position. So the file must keep its size: what was
read becomes a hole. Where a filesystem has no holes, the file is emptied; the plugin's next write is at its old position then.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from rankscope.analysis.durations.duration_calls import RankCalls
from rankscope.analysis.durations.log_files import BEGIN
from rankscope.analysis.durations.logs import MOST_RECORD_BYTES, ProcessLog
from rankscope.base.regular_files import open_regular

READ_BYTES: Final = 8 << 20
"""Largest part that is read at once."""
BEHIND_BYTES: Final = 64 << 20
"""Largest part that may wait to be read; of a longer one the beginning is skipped."""
RELEASE_BYTES: Final = 1 << 20
"""Smallest part whose disk space is released."""
MOST_COMMUNICATORS: Final = 4096
MOST_CROSSED: Final = 100
"""Largest number of records that have another rank than those before on their communicator."""
_BLOCK: Final = 1 << 16
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class LogFollower:
    """Log of one process. ``is_own``: the log is in a folder that the run made for it, so its disk space may be released.

    ``progress``: that of another follower, which had read a part of the log.
    """

    def __init__(self, path: Path, *, pid: int, is_own: bool, progress: Sequence[int] = ()) -> None:
        self.path = path
        self.log = ProcessLog(path)
        self.skipped_bytes = 0
        """Number of bytes that were skipped, because the process writes faster than they can be read."""
        self._pid = pid
        self._is_own = is_own
        self._released = 0
        self._inode: int | None
        self._inode, self._offset = progress or (None, 0)

    def read(self) -> bool:
        """Add the records since the last call to ``log``; return whether there may be more. Raises ``OSError``.

        A last record that is not complete is left for the next call. Raises ``ValueError`` for a log of another process.
        """
        with open_regular(self.path, links=False) as file:
            status = os.fstat(file.fileno())
            if self._inode != status.st_ino or 0 < status.st_size < self._offset:
                self._inode, self._offset, self._released = status.st_ino, 0, 0
            behind = status.st_size - self._offset
            if behind > BEHIND_BYTES:
                self.skipped_bytes += behind - READ_BYTES
                self._offset = status.st_size - READ_BYTES
            file.seek(self._offset)
            data = file.read(READ_BYTES)
        used = self._decode(data)
        self._offset += used
        if self.log.pid not in (-1, self._pid) or self.log.crossed > MOST_CROSSED or len(self.log.groups) > MOST_COMMUNICATORS:
            raise ValueError(f"{self.path.name} is no log of one process with one GPU")
        return len(data) == READ_BYTES and used > 0

    @property
    def progress(self) -> tuple[int, ...]:
        """What was read: the inode of the file, and the position in it; empty: nothing."""
        return () if self._inode is None else (self._inode, self._offset)

    def take(self) -> RankCalls:
        """Return the operations read since the last call."""
        rows = list(self.log.rows)
        self.log.rows.clear()
        return RankCalls(rows, self.log.groups)

    def release(self) -> None:
        """Release the disk space of what was read, once it is enough to be worth it. Raises ``OSError``."""
        end = self._offset // _BLOCK * _BLOCK
        if not self._is_own or end - self._released < RELEASE_BYTES:
            return
        handle = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if status.st_ino != self._inode or status.st_nlink != 1:
                return
            if not _punch_hole(handle, end) and status.st_size == self._offset:
                # What is written in this moment is lost; the record that it cuts is counted as damaged.
                os.ftruncate(handle, 0)
            self._released = end
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Remove the log, if the run made its folder. Raises ``OSError``."""
        if self._is_own:
            self.path.unlink(missing_ok=True)

    def _decode(self, data: bytes) -> int:
        """Decode the records in ``data``; return how many bytes of it are done with."""
        begins = [match.start() for match in BEGIN.finditer(data)]
        if not begins:
            consumed = len(data) if not data.strip(b"\0 \t\r\n,[]") else max(0, len(data) - MOST_RECORD_BYTES)
            self.log.damaged += 0 < consumed < len(data)
            return consumed
        self.log.damaged += bool(data[: begins[0]].strip(b"\0 \t\r\n,[]"))
        for begin, end in pairwise(begins):
            self._add(data[begin:end])
        last = data[begins[-1] :]
        if last.rstrip(b" \t\r\n,]\0").endswith(b"}") and self.log.decode(last):
            return len(data)
        if len(last) <= MOST_RECORD_BYTES:
            return begins[-1]
        self._add(last)
        return len(data)

    def _add(self, piece: bytes) -> None:
        """Add the record that ``piece`` begins with; other text after it is damage."""
        if not self.log.decode(piece):
            self.log.damaged += 1
            self.log.decode(piece.partition(b"\n")[0])


def _punch_hole(handle: int, end: int) -> bool:
    """Replace the first ``end`` bytes of a file by a hole; return whether the filesystem can. Raises other ``OSError``."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if fallocate(handle, _KEEP_SIZE | _PUNCH_HOLE, 0, end) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV):
        return False
    raise OSError(number, os.strerror(number))
