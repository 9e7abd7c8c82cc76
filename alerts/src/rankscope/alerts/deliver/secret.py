"""Secrets of destinations and senders: where each is kept, and how it is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from rankscope.base.errors import InputError
from rankscope.base.regular_files import open_regular

_MAX_BYTES: Final = 64 * 1024


class SecretUnavailableError(InputError):
    """A secret cannot be read now; the message names its place, never its content."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Place of a secret: an environment variable, a file with one line, or a value from the command line.

    The secret is read at each use, so that a file can be replaced without a restart.
    """

    env: str | None = None
    file: Path | None = None
    value: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """Place of the secret, without its content."""
        if self.file is not None:
            return str(self.file)
        return "the command line" if self.env is None else f"the variable {self.env}"

    def read(self) -> str:
        """Read the secret: one printable line, not empty. Raises ``SecretUnavailableError``."""
        text = self._text().strip()
        if not text:
            raise SecretUnavailableError(self.where, "empty")
        if not text.isprintable():
            raise SecretUnavailableError(self.where, "expected one line of text")
        return text

    def _text(self) -> str:
        if self.value is not None:
            return self.value
        if self.file is None:
            assert self.env is not None
            if self.env not in os.environ:
                raise SecretUnavailableError(self.where, "not set")
            return os.environ[self.env]
        try:
            with open_regular(self.file) as file:
                return file.read(_MAX_BYTES).decode()
        except OSError as error:
            raise SecretUnavailableError(self.where, error.strerror or str(error)) from error
        except UnicodeDecodeError:
            raise SecretUnavailableError(self.where, "not text") from None


class SecretPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Place of a secret in ``alerts.toml``: ``{ env = "NAME" }`` or ``{ file = "path" }``."""

    env: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    file: Annotated[str, msgspec.Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise ValueError("give either env or file; this file must not contain the secret itself")

    def secret(self, folder: Path) -> Secret:
        """Return the secret; a relative file name starts at ``folder``."""
        return Secret(env=self.env, file=None if self.file is None else folder / self.file)
