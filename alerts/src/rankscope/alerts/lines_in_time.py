"""The records of a stream up to a moment, as the lines they are, from files that stay closed in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from rankscope.runs.segments import MAX_LINE_BYTES, open_regular

READ_BYTES: Final = 32 * 1024
"""At once: a thousand ranks have three streams each."""

_T = TypeVar("_T", bound=msgspec.Struct)


class LinesInTime(Generic[_T]):
    """Lines of ``segments``, in their order. ``moment`` tells when a record of ``kind`` was there, in unix nanoseconds.

    A line that is no record comes with the one before it: whoever reads it finds the same damage. Segments that cannot be read
    are added to ``unreadable``.
    """

    def __init__(self, segments: Sequence[Path], kind: type[_T], moment: Callable[[_T], int], *, unreadable: list[Path]) -> None:
        self._unreadable = unreadable
        self._segments = deque(segments)
        self._at = 0
        self._decoder = msgspec.json.Decoder(kind)
        self._moment = moment
        self._last_unix_ns = 0
        self._ready: deque[tuple[int, bytes]] = deque()

    @property
    def next_unix_ns(self) -> int | None:
        """When the next line is there; ``None`` when there is none."""
        while not self._ready and self._segments:
            self._read()
        return self._ready[0][0] if self._ready else None

    def until(self, unix_ns: int) -> bytes:
        """The lines that come by then, each with its newline."""
        taken: list[bytes] = []
        while (moment := self.next_unix_ns) is not None and moment <= unix_ns:
            taken.append(self._ready.popleft()[1])
        return b"".join(taken)

    def _read(self) -> None:
        """Read on in the first segment that is left; drop it when there is no whole line any more."""
        try:
            with open_regular(self._segments[0]) as file:
                file.seek(self._at)
                data = file.read(READ_BYTES)
                if len(data) == READ_BYTES and b"\n" not in data:
                    data += file.read(MAX_LINE_BYTES)
        except OSError:
            self._unreadable.append(self._segments[0])
            data = b""
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        if not whole:
            self._segments.popleft()
            self._at = 0
        for line in whole.split(b"\n")[:-1]:
            self._ready.append((self._when(line), line + b"\n"))

    def _when(self, line: bytes) -> int:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            self._last_unix_ns = max(self._last_unix_ns, self._moment(self._decoder.decode(line)))
        return self._last_unix_ns
