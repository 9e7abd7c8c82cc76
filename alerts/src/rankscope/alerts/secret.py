"""Secrets: named by the operator's configuration, read when they are needed, shown to nobody. Needs no extra."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from rankscope.runs.segments import open_regular

_MAX_BYTES: Final = 64 * 1024


class SecretUnavailableError(Exception):
    """A secret cannot be read now; the message says which one, never what is in it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A variable of the environment, a file with one line, or a value that came by the command line.

    It is read anew each time, so that a file can be replaced while we run.
    """

    env: str | None = None
    file: Path | None = None
    value: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """Its place, fit for a message."""
        if self.file is not None:
            return str(self.file)
        return "the command line" if self.env is None else f"the variable {self.env}"

    def read(self) -> str:
        """What it is: one printable line, not empty. Raises ``SecretUnavailableError``."""
        text = self._text().strip()
        if not text:
            raise SecretUnavailableError(f"{self.where}: empty")
        if not text.isprintable():
            raise SecretUnavailableError(f"{self.where}: expected one line of text")
        return text

    def _text(self) -> str:
        if self.value is not None:
            return self.value
        if self.file is None:
            assert self.env is not None
            if self.env not in os.environ:
                raise SecretUnavailableError(f"{self.where}: not set")
            return os.environ[self.env]
        try:
            with open_regular(self.file) as file:
                return file.read(_MAX_BYTES).decode()
        except OSError as error:
            raise SecretUnavailableError(f"{self.file}: {error.strerror or error}") from error
        except UnicodeDecodeError:
            raise SecretUnavailableError(f"{self.file}: not text") from None


class SecretPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a secret is, in ``alerts.toml``: ``{ env = "NAME" }`` or ``{ file = "path" }``."""

    env: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    file: Annotated[str, msgspec.Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise ValueError("give either env or file; secrets themselves do not belong into this file")

    def secret(self, folder: Path) -> Secret:
        """It; files are looked for in ``folder``."""
        return Secret(env=self.env, file=None if self.file is None else folder / self.file)
