"""Secrets of whoever may send: named by where they are, read again when they change, shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rankscope.runs.errors import InputError
from rankscope.runs.segments import open_regular

MAX_BYTES: Final = 64 * 1024


class SecretSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a secret is: ``{ env = "NAME" }`` or ``{ file = "/path" }``, of which the line break at the end does not count."""

    env: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise ValueError('expected { env = "NAME" } or { file = "/path" }; secrets themselves do not belong into this file')

    @property
    def place(self) -> str:
        """Its name for messages."""
        return f"${self.env}" if self.env is not None else str(self.file)


class Secret:
    """The secret at a place. A file that changes is read again, so that secrets are changed without a restart.

    Raises ``InputError`` where there is none at the start; later the last one stays, and ``report`` gets a line, once.
    """

    def __init__(self, source: SecretSource, *, report: Callable[[str], object]) -> None:
        self._source = source
        self._report = report
        self._seen: tuple[int, int, int] | None = None
        self._troubled = False
        self._value = b""
        self._value = self._read()

    def __repr__(self) -> str:
        return f"Secret({self._source.place})"

    @property
    def value(self) -> bytes:
        """The secret as it is now."""
        if self._source.file is not None:
            try:
                self._value = self._read()
                self._troubled = False
            except InputError as error:
                if not self._troubled:
                    self._troubled = True
                    self._report(f"{error}; the secret read before stays in use")
        return self._value

    def _read(self) -> bytes:
        place = self._source.place
        if self._source.file is None:
            value = os.environ.get(str(self._source.env), "").encode(errors="surrogateescape")
        else:
            path = Path(self._source.file)
            try:
                with open_regular(path) as file:
                    status = os.fstat(file.fileno())
                    now = (status.st_ino, status.st_size, status.st_mtime_ns)
                    if now == self._seen:
                        return self._value
                    value = file.read(MAX_BYTES + 1)
            except OSError as error:
                raise InputError(place, f"the secret cannot be read: {error.strerror or error}") from error
            if len(value) > MAX_BYTES:
                raise InputError(place, f"no secret: more than {MAX_BYTES} bytes")
            self._seen = now
        value = value.rstrip(b"\r\n")
        if not value:
            self._seen = None
            raise InputError(place, "the secret is empty, or not there")
        return value
