"""Standard output that writes all data and is named in errors: a full disk, a quota, a file size limit."""

from __future__ import annotations

import io
import select
import sys
from typing import Any, Final

NAME: Final = "standard output"


class _Raw(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Write all of ``data``: a file may accept a part, and without a buffer (PYTHONUNBUFFERED) the rest would be lost.

        Raises ``OSError`` with the name of standard output; ``BrokenPipeError`` is raised unchanged.
        """
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        try:
            while remaining:
                written: int | None = super().write(remaining)
                if written is None:  # another process made the shared file non-blocking
                    select.select((), (self,), ())
                remaining = remaining[written or 0 :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, NAME) from error
        return size


def name_standard_output() -> None:
    """Make errors of writing to ``sys.stdout`` name it. Does nothing if ``sys.stdout`` was replaced."""
    old = sys.stdout
    if old is not sys.__stdout__ or not isinstance(old, io.TextIOWrapper):
        return
    raw = _Raw(old.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        raw if isinstance(old.buffer, io.RawIOBase) else io.BufferedWriter(raw),
        encoding=old.encoding,
        errors=old.errors,
        newline="\n",
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )
