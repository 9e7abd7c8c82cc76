"""JSON Lines as they lie on disk: which segments there are, and their lines, whatever else lies there."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal

from rankscope.runs.paths import Stream

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""A longer line is damage: no record comes near this."""


class IrregularFileError(OSError):
    """Something that has a name but is no file with an end: a FIFO, a socket, a device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file", os.fspath(path))


def open_regular(path: Path, *, links: bool = True) -> BinaryIO:
    """Open a regular file, or a link to one unless ``links`` is false, for reading.

    Raises ``OSError``, also for everything else that has a name: a FIFO without a writer would be waited for for ever, and a
    device need not end.
    """
    try:
        follow = 0 if links else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | follow)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise IrregularFileError(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) if stat.S_ISDIR(mode) else IrregularFileError(path)
    return os.fdopen(descriptor, "rb")


def list_segments(folder: Path, stream: Stream, kind: Literal["jsonl", "parquet"] = "jsonl") -> list[Path]:
    """Segments of a stream in ``folder``, in the order they were written.

    Raises ``OSError`` where the folder cannot be listed, which ``glob`` would call empty.
    """
    pattern = re.compile(rf"{stream}-(\d{{1,9}})\.{kind}")
    with os.scandir(folder) as entries:
        found = [(int(match[1]), entry.name) for entry in entries if (match := pattern.fullmatch(entry.name))]
    return [folder / name for _, name in sorted(found)]


def number_of(segment: Path) -> int:
    """Number of a segment that ``list_segments`` found."""
    return int(segment.stem.rpartition("-")[2])


def read_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Every line from where ``file`` stands, with its newline; ``None`` for one that is torn or endless."""
    while line := file.readline(MAX_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line
            continue
        # Torn: the writer is in the middle of it, or died there. Or endless: then nothing of it is used.
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)  # the rest of the same line
        yield None
