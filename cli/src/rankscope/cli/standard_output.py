"""Standard output that takes everything, or says its name: a full disk, a quota, a limit on the size of files."""

from __future__ import annotations

import io
import select
import sys
from typing import Any, Final

NAME: Final = "standard output"


class _Raw(io.FileIO):
    def write(self, data: Any, /) -> int:
        """All of it, where any file may take less: without a buffer (PYTHONUNBUFFERED) nobody else would write the rest.

        An error names the place. A reader that went away is no error of the place.
        """
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                taken: int | None = super().write(rest)
                if taken is None:  # somebody made it non-blocking, for all who share it
                    select.select((), (self,), ())
                rest = rest[taken or 0 :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, NAME) from error
        return size


def name_standard_output() -> None:
    """Have errors of writing to ``sys.stdout`` say where. Leaves alone what somebody has put in its place."""
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
