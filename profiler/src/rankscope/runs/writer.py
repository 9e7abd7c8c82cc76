"""Writing a run directory: atomic small files, append-only segments of rows or JSON Lines.

Each rank writes only its own files; nobody locks anything. Nothing here is called on a training thread.
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

from rankscope.runs.paths import Stream, attempt_dir, run_file, segment
from rankscope.runs.records import AttemptInfo, RunInfo, StepRecord
from rankscope.runs.segments import IrregularFileError, list_segments, number_of, open_regular
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES, event_of, header, pack_row

SEGMENT_BYTES: Final = 16 * 1024 * 1024
_FRESH_SECONDS: Final = 10.0
_NO_FSYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What a filesystem says that has nothing to confirm."""

_encoder = msgspec.json.Encoder()


def make_folder(folder: Path, *, parents: bool = True) -> None:
    """Make ``folder`` and those it lies in; what is made is open to whom the folder it is made in is open. Raises ``OSError``.

    Ranks may be different users, with umasks that would lock the others out: whoever may write into a run may add a rank to it,
    and whoever may read it may read all of it, whoever makes its folders. Without ``parents`` a run that was removed is not made
    again.
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
            # Another rank has just made the parent, and is about to open it.
            if patience is None or time.time() - folder.parent.stat().st_mtime > _FRESH_SECONDS:
                raise
            time.sleep(patience)
        else:
            break
    with suppress(OSError):  # a root-squashed mount may refuse; then the umask decides
        folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode))


def run_is_gone(run_dir: Path) -> bool:
    """Whether the run was removed: what is written into its folder now would make one that is no run. Raises ``OSError``."""
    try:
        run_file(run_dir).stat()
    except FileNotFoundError:
        return True
    return False


def _share(file: BinaryIO, folder: Path) -> None:
    """Let read ``file`` whoever may read the folder it is in."""
    with suppress(OSError):
        os.fchmod(file.fileno(), 0o600 | (folder.stat().st_mode & 0o044))


def write_atomically(path: Path, data: bytes, *, overwrite: bool = True, share: bool = False) -> bool:
    """Write ``data`` so that a reader sees the old file or the new one, never a part.

    With ``overwrite=False`` an existing file wins, also against a concurrent writer on another host. Returns whether this
    call wrote the file. ``share``: whoever may read the folder it is in may read it. Raises ``OSError``.
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
            # No hard links on this filesystem: the last of two racing writers wins, with a whole file either way.
            temporary.replace(path)
        return True
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets the name ``path`` when the block ends without an error; else nothing is left of it.

    Whatever has the name is replaced, links too, and not written through. Whoever may read the folder, which has to be there,
    may read the file. Raises ``OSError``.
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


def append_whole(path: Path, data: bytes) -> None:
    """Append ``data`` to a regular file, all of it or nothing; a new one is open to whom its folder is. Waits for nobody.

    For a file with one writer in a folder that others may write to, so a link or a FIFO in its place is refused. The folder is
    not made. Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    # Closed before this returns: what a filesystem says only then is said, too.
    with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise IrregularFileError(path)
        if not found.st_size:
            _share(file, path.parent)
        try:
            _write_all(file, data)
        except OSError:
            with suppress(OSError):
                file.truncate(found.st_size)
            raise


def _write_all(file: BinaryIO, data: bytes) -> None:
    """A full disk may take a part; the rest then raises, rather than being lost unseen."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def write_record(path: Path, record: msgspec.Struct, *, overwrite: bool = True, share: bool = True) -> bool:
    """Write one record as an indented JSON file, atomically; see ``write_atomically``."""
    data = msgspec.json.format(_encoder.encode(record), indent=2) + b"\n"
    return write_atomically(path, data, overwrite=overwrite, share=share)


def create_run(run: Path, info: RunInfo) -> bool:
    """Write ``run.json`` unless it is there. Returns whether this call created the run."""
    # The run's own folder is as its maker's umask has it; all within it is as that folder is.
    run.mkdir(parents=True, exist_ok=True)
    return write_record(run_file(run), info, overwrite=False)


def create_attempt(run: Path, info: AttemptInfo) -> bool:
    """Write ``attempt.json`` unless it is there."""
    return write_record(attempt_dir(run, info.attempt) / "attempt.json", info, overwrite=False)


class SegmentWriter(ABC):
    """Appends records to ``STREAM-NNNNNN.*`` in ``folder`` and starts a new segment when one is full.

    ``retain_bytes``: when the segments have become more than that, the oldest are removed, never the open one. ``None``: none
    ever is.
    """

    def __init__(
        self, folder: Path, stream: Stream, *, segment_bytes: int = SEGMENT_BYTES, retain_bytes: int | None = None
    ) -> None:
        self._folder = folder
        self._stream: Stream = stream
        self._retain_bytes = retain_bytes
        # Small enough that what is removed at a time is a small part of what is kept.
        self._segment_bytes = segment_bytes if retain_bytes is None else min(segment_bytes, max(1, retain_bytes // 8))
        self.expired = 0
        """Records that were removed so."""
        self.landed = 0
        """Records of the last ``append`` that are in the file although it raised: the first so many."""
        self.unconfirmed = 0
        """Records that may not be on the disk: the filesystem took them, and failed when it was to make sure of them."""
        self._number = 0
        self._size = 0
        self._records = 0
        self._file: BinaryIO | None = None

    @abstractmethod
    def encode(self, record: msgspec.Struct) -> bytes:
        """The bytes of one record, as ``append`` takes them."""

    @abstractmethod
    def _whole_records(self, written: bytes) -> int:
        """Records that are in the bytes of a write that was cut short."""

    @abstractmethod
    def _count(self, file: BinaryIO) -> int:
        """Records of a closed segment."""

    def _header(self) -> bytes:
        """What a segment begins with."""
        return b""

    def _seal(self, file: BinaryIO) -> None:  # noqa: B027  # most need not
        """Finish a segment before it is closed. Raises ``OSError``."""

    def append(self, *records: msgspec.Struct | bytes) -> None:
        """Append records (structs, or bytes as ``encode`` makes them) in one write.

        Raises ``OSError``, or whatever else goes wrong; then none of them but the first ``landed`` is in the file, so the others
        may be appended again. There are such only where even taking back what was written fails; the next call then starts a new
        segment.
        """
        self.landed = 0
        if not records:
            return
        data = b"".join(record if isinstance(record, bytes) else self.encode(record) for record in records)
        if self._file is not None and _is_removed(self._file):
            # What is written into it would be nowhere. Its name is not used again: somebody may remember what it held.
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
                # A full disk may take a part; the rest then raises, rather than being lost unseen.
                written += self._file.write(data[written:])
        except Exception:
            self._take_back(self._file, data[:written])
            raise
        self._size += len(data)
        self._records += len(records)

    @property
    def opens(self) -> bool:
        """Whether the next ``append`` begins a segment."""
        return self._file is None or self._size >= self._segment_bytes or _is_removed(self._file)

    def _take_back(self, file: BinaryIO, written: bytes) -> None:
        try:
            file.truncate(self._size)
        except (OSError, ValueError):
            # Whole records must not come twice; and the next must not be glued to a part of one.
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
            # After the last, not in the first gap: the order of the numbers is that of the records.
            self._number = max(self._number, number_of(there[-1]) + 1)
        self._file = segment(self._folder, self._stream, self._number).open("xb", buffering=0)
        _share(self._file, self._folder)
        self._size = self._records = 0
        if self._retain_bytes is not None:
            # What cannot be removed now is so when the next segment begins; it is no reason not to write.
            with suppress(OSError):
                self._expire(self._retain_bytes - self._segment_bytes)

    def _expire(self, limit: int) -> None:
        """Remove the oldest segments until the others, without the open one, are at most ``limit`` bytes. Raises ``OSError``."""
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
        """Close the open segment, if any, and see that the disk has it. Raises ``OSError``; it is closed all the same.

        May take as long as the filesystem does: some notice only now that there was no room (see ``unconfirmed``).
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
    """Appends records as lines of JSON."""

    def encode(self, record: msgspec.Struct) -> bytes:
        """The record as JSON, and a newline."""
        return _encoder.encode(record) + b"\n"

    def _whole_records(self, written: bytes) -> int:
        return written.count(b"\n")

    def _count(self, file: BinaryIO) -> int:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


class RowWriter(SegmentWriter):
    """Appends rows of step records in the folder of a rank. Numpy can load a segment once it is closed."""

    def __init__(
        self, folder: Path, *, rank: int, attempt: int, segment_bytes: int = SEGMENT_BYTES, retain_bytes: int | None = None
    ) -> None:
        super().__init__(folder, "steps", segment_bytes=segment_bytes, retain_bytes=retain_bytes)
        self._rank, self._attempt = rank, attempt

    def encode(self, record: msgspec.Struct) -> bytes:
        """The row of a ``StepRecord``. Raises ``struct.error`` for numbers beyond its columns."""
        assert isinstance(record, StepRecord)
        return pack_row(record)

    def _whole_records(self, written: bytes) -> int:
        return len(written) // ROW_BYTES

    def _count(self, file: BinaryIO) -> int:
        return max(0, os.fstat(file.fileno()).st_size - HEADER_BYTES) // ROW_BYTES

    def _header(self) -> bytes:
        return header(self._rank, self._attempt)

    def _seal(self, file: BinaryIO) -> None:
        """Write the number of rows into the header, for ``numpy.load``; rankscope itself goes by the size of the file."""
        os.pwrite(file.fileno(), header(self._rank, self._attempt, rows=self._count(file)), 0)


class StepWriter:
    """Appends step records of a rank, each as a row and, where it has sections or tags, an event."""

    def __init__(self, folder: Path, *, rank: int, attempt: int = 0, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._rows = RowWriter(folder, rank=rank, attempt=attempt, segment_bytes=segment_bytes)
        self._events = JsonLinesWriter(folder, "events", segment_bytes=segment_bytes)

    def append(self, *records: StepRecord) -> None:
        """Append records. Raises ``OSError``."""
        self._events.append(*(event for record in records if (event := event_of(record)) is not None))
        self._rows.append(*records)

    def close(self) -> None:
        """Close the open segments. Raises ``OSError``."""
        self._events.close()
        self._rows.close()


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
        return error.errno == errno.ESTALE  # as a server says of a file that another client removed
