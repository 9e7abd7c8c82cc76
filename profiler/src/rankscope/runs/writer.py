"""Writing a run directory: atomic small files, append-only JSON Lines in segments.

Each rank writes only its own files; nobody locks anything. Nothing here is called on a training thread.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankscope.runs.paths import Stream, attempt_dir, run_file, segment
from rankscope.runs.records import AttemptInfo, RunInfo

SEGMENT_BYTES: Final = 16 * 1024 * 1024

_encoder = msgspec.json.Encoder()


def write_atomically(path: Path, data: bytes, *, overwrite: bool = True) -> bool:
    """Write ``data`` so that a reader sees the old file or the new one, never a part.

    With ``overwrite=False`` an existing file wins, also against a concurrent writer on another host. Returns whether this
    call wrote the file. Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not overwrite and path.exists():
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
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


def write_record(path: Path, record: msgspec.Struct, *, overwrite: bool = True) -> bool:
    """Write one record as an indented JSON file, atomically; see ``write_atomically``."""
    return write_atomically(path, msgspec.json.format(_encoder.encode(record), indent=2) + b"\n", overwrite=overwrite)


def create_run(run: Path, info: RunInfo) -> bool:
    """Write ``run.json`` unless it is there. Returns whether this call created the run."""
    return write_record(run_file(run), info, overwrite=False)


def create_attempt(run: Path, info: AttemptInfo) -> bool:
    """Write ``attempt.json`` unless it is there."""
    return write_record(attempt_dir(run, info.attempt) / "attempt.json", info, overwrite=False)


class JsonLinesWriter:
    """Appends records to ``STREAM-NNNNNN.jsonl`` in ``folder`` and starts a new segment when one is full."""

    def __init__(self, folder: Path, stream: Stream, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._stream: Stream = stream
        self._segment_bytes = segment_bytes
        self._number = 0
        self._size = 0
        self._file: BinaryIO | None = None

    def append(self, *records: msgspec.Struct | bytes) -> None:
        """Append records (structs, or already encoded JSON objects without newline) in one write.

        Raises ``OSError``; then none of them is in the file, so they may be appended again. Where even taking back what was
        written fails, the next call starts a new segment.
        """
        if not records:
            return
        data = b"".join((r if isinstance(r, bytes) else _encoder.encode(r)) + b"\n" for r in records)
        if self._file is not None and self._size >= self._segment_bytes:
            self.close()
        if self._file is None:
            self._open()
        assert self._file is not None
        written = 0
        try:
            while written < len(data):
                # A full disk may take a part; the rest then raises, rather than being lost unseen.
                written += self._file.write(data[written:])
        except OSError:
            self._take_back(self._file)
            raise
        self._size += len(data)

    def _take_back(self, file: BinaryIO) -> None:
        try:
            file.truncate(self._size)
            file.seek(self._size)
        except OSError:
            # A part of a line may stay; the next record must not be glued to it.
            with suppress(OSError):
                self.close()

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        while segment(self._folder, self._stream, self._number).exists():
            self._number += 1
        self._file = segment(self._folder, self._stream, self._number).open("xb", buffering=0)
        self._size = 0

    def close(self) -> None:
        """Close the open segment, if any."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
