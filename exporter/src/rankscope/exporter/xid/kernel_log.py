"""Non-blocking reader of the kernel log: first the records still in its buffer, then new ones."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.exporter.xid.entry import KernelXid
from rankscope.exporter.xid.kernel_lines import KernelLines

logger = logging.getLogger(__name__)

KMSG: Final = Path("/dev/kmsg")

# The kernel gives one record per read, of at most 8 KiB.
_MAX_RECORD: Final = 16 * 1024
_MAX_READS: Final = 20_000


class KernelLog:
    """Errors in the kernel log. Not thread-safe.

    ``problem`` says why it cannot be read; None while it can. ``lost`` counts records that were not read, mostly because the
    kernel overwrote them before. A record on which the parser fails unexpectedly costs no other.
    """

    def __init__(self, path: Path = KMSG, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.problem: str | None = None
        self.lost = 0
        self._path = path
        self._monotonic = monotonic
        self._fd: int | None = None
        self._lines = KernelLines()
        self._defects = ProblemLog(partial(logger.warning, "a record of the kernel log is left out: %s"))
        self._partial_line = b""
        self._next_seq: int | None = None
        self._read_until_s = 0.0

    def read(self) -> list[KernelXid]:
        """Return the errors in new records; a very long log takes several calls.

        Never raises; ``problem`` says why the log cannot be read.
        """
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            errors = self._drain(self._fd)
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"
            self.close()
            return []
        self.problem = None
        return errors

    def close(self) -> None:
        """Close the file. The next ``read`` opens it again and returns all errors again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._partial_line, self._next_seq = None, b"", None

    def _drain(self, fd: int) -> list[KernelXid]:
        errors: list[KernelXid] = []
        began_s = self._monotonic()
        for _ in range(_MAX_READS):
            try:
                data = os.read(fd, _MAX_RECORD)
            except BlockingIOError:
                break
            except OSError as error:
                # Overwritten, or larger than the buffer: the kernel goes on behind it, and the gap in the numbers is counted.
                if error.errno in (errno.EPIPE, errno.EINVAL):
                    continue
                raise
            if not data:
                break
            *records, self._partial_line = (self._partial_line + data).split(b"\n")
            self._partial_line = self._partial_line[-_MAX_RECORD:]
            errors += [xid for record in records if (xid := self._parsed(record)) is not None]
        else:
            return errors
        self._read_until_s = began_s
        return errors

    def _parsed(self, record: bytes) -> KernelXid | None:
        try:
            return self._error(record)
        except Exception as error:  # noqa: BLE001  the other records must be read
            self._defects.report(f"{type(error).__name__}: {error}")
            return None

    def _error(self, record: bytes) -> KernelXid | None:
        read = self._lines.read(record)
        if read is None:  # an attribute of the previous record, or invalid
            return None
        seq, _, error = read
        if self._next_seq is not None and seq > self._next_seq:
            self.lost += seq - self._next_seq
        self._next_seq = seq + 1
        if error is None:
            return None
        # Kernel timestamps drift from the monotonic clock over weeks: a new record is not older than the last complete read.
        boot_s = min(max(error.boot_s, self._read_until_s), self._monotonic())
        return msgspec.structs.replace(error, boot_s=boot_s)
