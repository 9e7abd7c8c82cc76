"""Errors a person can act on.

``RankscopeError``
  ├── ``InputError``     input that cannot be read: which file, which place, what is wrong (exit status 3)
  └── ``MissingError``   an extra or a program is not installed, with how to get it (exit status 4)

Only the command line prints them and chooses the exit status.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class RankscopeError(Exception):
    """Base of every error whose message is meant for a person: one line, no traceback."""


class InputError(RankscopeError):
    """Input that cannot be read.

    ``path`` is the file or folder, ``reason`` what is wrong with it, ``place`` where in it (``"line 3"``, ``"byte 4096"``).
    """

    def __init__(self, path: str | os.PathLike[str], reason: str, *, place: str | None = None) -> None:
        self.path = os.fspath(path)
        self.reason = reason
        self.place = place
        where = f"{self.path}: {place}" if place else self.path
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[Callable[..., InputError], tuple[str, str, str | None]]:
        # Between processes: exceptions are rebuilt from their message, which is not what this one is made of.
        return _input_error, (self.path, self.reason, self.place)


def _input_error(path: str, reason: str, place: str | None) -> InputError:
    return InputError(path, reason, place=place)


class MissingError(RankscopeError):
    """An optional part or an external program is not there; the message ends with how to install it."""
