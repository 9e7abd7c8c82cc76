"""Writing of segments: append-only files of rows or JSON Lines.

Each rank writes only its own files, without locks. No function of this module is called on a training thread.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankscope.base.atomic_files import share, sync_file
from rankscope.base.regular_files import open_regular
from rankscope.runs.paths import Stream, segment
from rankscope.runs.records import StepRecord
from rankscope.runs.segments import list_segments, number_of
from rankscope.runs.small_files import make_folder
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES, header, pack_row

SEGMENT_BYTES: Final = 16 * 1024 * 1024

_encoder = msgspec.json.Encoder()


class SegmentWriter(ABC):
    """Writer that appends records to ``STREAM-NNNNNN.*`` in ``folder`` and starts a new segment when one is full.

    ``retain_bytes``: size of all segments above which the oldest are removed, never the open one. ``None``: none is removed.
    """

    def __init__(
        self, folder: Path, stream: Stream, *, segment_bytes: int = SEGMENT_BYTES, retain_bytes: int | None = None
    ) -> None:
        self._folder = folder
        self._stream: Stream = stream
        self._retain_bytes = retain_bytes
        # Small segments, so that each removal is a small part of the retained data.
        self._segment_bytes = segment_bytes if retain_bytes is None else min(segment_bytes, max(1, retain_bytes // 8))
        self.expired = 0
        """Number of records that retention removed."""
        self.landed = 0
        """Number of records of the last ``append``, from the first on, that are in the file although it raised."""
        self.unconfirmed = 0
        """Number of records that may not be on the disk: they were written, but ``fsync`` or close failed."""
        self._number = 0
        self._size = 0
        self._records = 0
        self._file: BinaryIO | None = None

    @abstractmethod
    def encode(self, record: msgspec.Struct) -> bytes:
        """Return the bytes of one record, as ``append`` accepts them."""

    @abstractmethod
    def _whole_records(self, written: bytes) -> int:
        """Return the number of whole records in the bytes of an incomplete write."""

    @abstractmethod
    def _count(self, file: BinaryIO) -> int:
        """Return the number of records of a closed segment."""

    def _header(self) -> bytes:
        """Return the header of a segment; empty by default."""
        return b""

    def _seal(self, file: BinaryIO) -> None:  # noqa: B027  # optional
        """Finish a segment before it is closed. Raises ``OSError``."""

    def append(self, *records: msgspec.Struct | bytes) -> None:
        """Append records (structs, or bytes as ``encode`` returns them) in one write.

        Raises ``OSError`` or another exception of encoding or writing. Then only the first ``landed`` records are in the file,
        and the others may be appended again. ``landed`` is not 0 only if truncating the incomplete write failed, too; the next
        call then starts a new segment.
        """
        self.landed = 0
        if not records:
            return
        data = b"".join(record if isinstance(record, bytes) else self.encode(record) for record in records)
        if self._file is not None and _is_removed(self._file):
            # Data written to a removed file would be lost. Its name is not reused: a reader may remember its contents.
            with suppress(OSError):
                self.close()
            self._number += 1
        if self._file is not None and self._size >= self._segment_bytes:
            self.close()
        if self._file is None:
            self._open()
        assert self._file is not None
        if not self._size:
            data = self._header() + data
        written = 0
        try:
            while written < len(data):
                # A full disk may accept a part; the next write then raises.
                written += self._file.write(data[written:])
        except Exception:
            self._take_back(self._file, data[:written])
            raise
        self._size += len(data)
        self._records += len(records)

    @property
    def opens(self) -> bool:
        """True if the next ``append`` starts a new segment."""
        return self._file is None or self._size >= self._segment_bytes or _is_removed(self._file)

    def _take_back(self, file: BinaryIO, written: bytes) -> None:
        try:
            file.truncate(self._size)
        except (OSError, ValueError):
            # Whole records must not be written twice, and the next must not follow a part of one.
            self.landed = self._whole_records(written if self._size else written[len(self._header()) :])
            self._records += self.landed
        else:
            with suppress(OSError):
                file.seek(self._size)
                return
        with suppress(OSError, ValueError):
            self.close()

    def _open(self) -> None:
        make_folder(self._folder)
        if segments := list_segments(self._folder, self._stream):
            # After the last segment, not in a gap: the numbers keep the order of the records.
            self._number = max(self._number, number_of(segments[-1]) + 1)
        self._file = segment(self._folder, self._stream, self._number).open("xb", buffering=0)
        share(self._file.fileno(), self._folder)
        self._size = self._records = 0
        if self._retain_bytes is not None:
            # A failed removal is tried again at the next segment; it must not prevent writing.
            with suppress(OSError):
                self._expire(self._retain_bytes - self._segment_bytes)

    def _expire(self, limit: int) -> None:
        """Remove the oldest segments until the rest, without the open one, has at most ``limit`` bytes. Raises ``OSError``."""
        open_name = segment(self._folder, self._stream, self._number).name
        closed = [path for path in list_segments(self._folder, self._stream) if path.name != open_name]
        sizes = [path.stat().st_size for path in closed]
        total = sum(sizes)
        for path, size in zip(closed, sizes, strict=True):
            if total <= limit:
                return
            with open_regular(path) as file:
                records = self._count(file)
            path.unlink()
            self.expired += records
            total -= size

    def close(self) -> None:
        """Close the open segment, if any, and flush it to disk (``fsync``). Raises ``OSError``; the segment is closed anyway.

        May block as long as the filesystem does. Some filesystems report a full disk only here (see ``unconfirmed``).
        """
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with file:
                self._seal(file)
                sync_file(file.fileno())
        except (OSError, ValueError):
            self.unconfirmed += self._records
            raise


class JsonLinesWriter(SegmentWriter):
    """Writer of records as lines of JSON."""

    def encode(self, record: msgspec.Struct) -> bytes:
        """Return the record as JSON with a newline."""
        return _encoder.encode(record) + b"\n"

    def _whole_records(self, written: bytes) -> int:
        return written.count(b"\n")

    def _count(self, file: BinaryIO) -> int:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


class RowWriter(SegmentWriter):
    """Writer of step records as rows in the folder of a rank. Numpy can load a segment once it is closed."""

    def __init__(
        self, folder: Path, *, rank: int, attempt: int, segment_bytes: int = SEGMENT_BYTES, retain_bytes: int | None = None
    ) -> None:
        super().__init__(folder, "steps", segment_bytes=segment_bytes, retain_bytes=retain_bytes)
        self._rank, self._attempt = rank, attempt

    def encode(self, record: msgspec.Struct) -> bytes:
        """Return the row of a ``StepRecord``. Raises ``struct.error`` for numbers too large for their columns."""
        assert isinstance(record, StepRecord)
        return pack_row(record)

    def _whole_records(self, written: bytes) -> int:
        return len(written) // ROW_BYTES

    def _count(self, file: BinaryIO) -> int:
        return max(0, os.fstat(file.fileno()).st_size - HEADER_BYTES) // ROW_BYTES

    def _header(self) -> bytes:
        return header(self._rank, self._attempt)

    def _seal(self, file: BinaryIO) -> None:
        """Write the number of rows into the header, for ``numpy.load``; rankscope itself uses the size of the file."""
        os.pwrite(file.fileno(), header(self._rank, self._attempt, rows=self._count(file)), 0)


def _is_removed(file: BinaryIO) -> bool:
    try:
        return os.fstat(file.fileno()).st_nlink == 0
    except OSError as error:
        return error.errno == errno.ESTALE  # error of an NFS server for a file that another client removed
