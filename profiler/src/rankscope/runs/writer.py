"""Writing a run directory: atomic small files, append-only segments of rows or JSON Lines.

Each rank writes only its own files, without locks. No function of this module is called on a training thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankscope.runs.paths import Stream, attempt_file, run_file, segment
from rankscope.runs.records import AttemptInfo, RunInfo, StepRecord
from rankscope.runs.segments import IrregularFileError, list_segments, number_of, open_regular
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES, header, pack_row

SEGMENT_BYTES: Final = 16 * 1024 * 1024
_FRESH_SECONDS: Final = 10.0
_NO_FSYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Errors of ``fsync`` on filesystems that do not support it."""

_encoder = msgspec.json.Encoder()


def make_folder(folder: Path, *, parents: bool = True) -> None:
    """Create ``folder`` and its parents, each with the permissions of the folder that it is created in. Raises ``OSError``.

    Ranks may be different users with restrictive umasks. Every user with write access to a run must be able to add a rank, and
    every user with read access must be able to read all of it. With ``parents=False`` a removed run is not created again.
    """
    if folder.is_dir():
        return
    if parents:
        make_folder(folder.parent)
    for patience in (0.05, 0.2, None):
        try:
            folder.mkdir()
        except FileExistsError:
            return
        except PermissionError:
            # Another rank has just created the parent and is about to set its permissions.
            if patience is None or time.time() - folder.parent.stat().st_mtime > _FRESH_SECONDS:
                raise
            time.sleep(patience)
        else:
            break
    with suppress(OSError):  # a root-squashed mount may refuse; then the umask decides
        folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode))


def run_is_gone(run_dir: Path) -> bool:
    """Return whether the run was removed: writing now would create a folder that is no run. Raises ``OSError``."""
    try:
        run_file(run_dir).stat()
    except FileNotFoundError:
        return True
    return False


def _share(file: BinaryIO, folder: Path) -> None:
    """Give ``file`` the read permissions of ``folder``."""
    with suppress(OSError):
        os.fchmod(file.fileno(), 0o600 | (folder.stat().st_mode & 0o044))


def write_atomically(path: Path, data: bytes, *, overwrite: bool = True, share: bool = False) -> bool:
    """Write ``data`` so that a reader sees the old file or the new one, never a part.

    With ``overwrite=False`` an existing file wins, also against a concurrent writer on another host. Returns whether this
    call wrote the file. ``share``: give the file the read permissions of its folder. Raises ``OSError``.
    """
    if share:
        make_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    if not overwrite and path.exists():
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            if share:
                _share(file, path.parent)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
            return True
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        except OSError:
            return _claim(path, temporary)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _claim(path: Path, temporary: Path) -> bool:
    """Rename ``temporary`` to ``path`` unless that exists, where there are no hard links. Return whether it was renamed.

    The file is empty for a moment, which readers handle as a damaged one. Raises ``OSError``.
    """
    try:
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    try:
        temporary.replace(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def overwrite_in_place(path: Path, data: bytes) -> None:
    """Write ``data`` over an existing small file, without new room on the disk. Raises ``OSError``.

    For a full disk only: a reader may see the old and the new content mixed, as a damaged file.
    """
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode) or os.pwrite(handle, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that is renamed to ``path`` when the block ends without an error, and else removed.

    An existing file of that name is replaced; a link is replaced, too, and not followed. The file gets the read permissions of
    its folder, which must exist. Raises ``OSError``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            _share(file, path.parent)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file for reading and appending, unbuffered; create it with the read permissions of its folder.

    For a folder that other users may write to: a link, a FIFO or a device in its place is rejected, and opening never blocks.
    The folder is not created. Raises ``OSError``.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise IrregularFileError(path)
    if not status.st_size:
        _share(file, path.parent)
    return file


def append_whole(path: Path, data: bytes) -> None:
    """Append ``data`` to a file that ``open_to_append`` opens, all of it or nothing. For a file with one writer.

    Raises ``OSError``.
    """
    # Closed before this returns, so that errors which a filesystem reports only then are raised, too.
    with open_to_append(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            _write_all(file, data)
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def replace_in(folder: int, name: str, data: bytes) -> None:
    """Write ``data`` to ``name`` in the opened ``folder`` so that a reader sees the old file or the new one, never a part.

    A link of that name is replaced and not followed. The file gets the read permissions of the folder. Raises ``OSError``.
    """
    temporary = f".{name}.{os.getpid()}-{secrets.token_hex(6)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
            with suppress(OSError):
                os.fchmod(file.fileno(), 0o600 | (os.fstat(folder).st_mode & 0o044))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write all of ``data``. A full disk may accept a part; the next write then raises."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def write_record(path: Path, record: msgspec.Struct, *, overwrite: bool = True) -> bool:
    """Write one record as an indented JSON file, atomically; see ``write_atomically``."""
    data = msgspec.json.format(_encoder.encode(record), indent=2) + b"\n"
    return write_atomically(path, data, overwrite=overwrite, share=True)


def create_run(run: Path, info: RunInfo) -> bool:
    """Write ``run.json`` unless it exists. Returns whether this call created the run."""
    # The umask decides the run folder's permissions; everything inside inherits them.
    run.mkdir(parents=True, exist_ok=True)
    return write_record(run_file(run), info, overwrite=False)


def create_attempt(run: Path, info: AttemptInfo) -> bool:
    """Write ``attempt.json`` unless it exists. Returns whether this call wrote it."""
    return write_record(attempt_file(run, info.attempt), info, overwrite=False)


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
        if there := list_segments(self._folder, self._stream):
            # After the last segment, not in a gap: the numbers keep the order of the records.
            self._number = max(self._number, number_of(there[-1]) + 1)
        self._file = segment(self._folder, self._stream, self._number).open("xb", buffering=0)
        _share(self._file, self._folder)
        self._size = self._records = 0
        if self._retain_bytes is not None:
            # A failed removal is tried again at the next segment; it must not prevent writing.
            with suppress(OSError):
                self._expire(self._retain_bytes - self._segment_bytes)

    def _expire(self, limit: int) -> None:
        """Remove the oldest segments until the rest, without the open one, has at most ``limit`` bytes. Raises ``OSError``."""
        closed = [path for path in list_segments(self._folder, self._stream) if path.name != self._open_name]
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

    @property
    def _open_name(self) -> str:
        return segment(self._folder, self._stream, self._number).name

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
                _confirm(file)
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


def _confirm(file: BinaryIO) -> None:
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


def _is_removed(file: BinaryIO) -> bool:
    try:
        return os.fstat(file.fileno()).st_nlink == 0
    except OSError as error:
        return error.errno == errno.ESTALE  # error of an NFS server for a file that another client removed
