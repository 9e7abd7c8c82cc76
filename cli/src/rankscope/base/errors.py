"""Errors a person can act on.

``RankscopeError``
  ├── ``InputError``     input that cannot be read: file, place in it, and reason (exit status 3)
  └── ``MissingError``   an extra or a program is not installed; the message says how to install it (exit status 4)

Only the command line prints them and chooses the exit status.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class RankscopeError(Exception):
    """Base of all errors that are shown to a person as one line without a traceback."""


class InputError(RankscopeError):
    """Input that cannot be read.

    ``path`` is the file or folder, ``reason`` the defect, ``place`` its location in the file (``"line 3"``, ``"byte 4096"``).
    """

    def __init__(self, path: str | os.PathLike[str], reason: str, *, place: str | None = None) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        self.place = place
        where = f"{self.path}: {place}" if place else self.path
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[Callable[..., InputError], tuple[str, str, str | None]]:
        # For pickling: by default an exception is rebuilt from its message alone, which does not fit this signature.
        return _input_error, (self.path, self.reason, self.place)


def _input_error(path: str, reason: str, place: str | None) -> InputError:
    return InputError(path, reason, place=place)


class MissingError(RankscopeError):
    """An extra or an external program is not installed; the message ends with how to install it."""
