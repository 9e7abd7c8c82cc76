"""Signatures of webhooks as Standard Webhooks has them: who sent it, that nobody changed it, and when. Needs no extra.

Three headers: ``webhook-id``, the same for every attempt to deliver a message; ``webhook-timestamp``, the second of the attempt;
``webhook-signature``, ``v1,`` and the base64 of HMAC-SHA256 over ``id.timestamp.body``, one for each secret, separated by spaces.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from rankscope.runs.segments import open_regular

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
TOLERANCE_S: Final = 300
"""A message may be so much older or younger than our clock says."""
_PREFIX: Final = "whsec_"
_SHORTEST: Final = 24
_LONGEST: Final = 64
_MOST_SIGNATURES: Final = 16


class SecretError(ValueError):
    """Not a secret to sign with; the message does not repeat it."""


class SignatureError(Exception):
    """Not signed by anybody who is trusted, or not now; the message says which, in words fit for an answer."""


def parse_secret(text: str) -> bytes:
    """The key in ``whsec_…``. Raises ``SecretError``."""
    encoded = text.strip().removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"expected {_PREFIX} and base64") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise SecretError(f"expected a secret of {_SHORTEST} to {_LONGEST} bytes, found {len(key)}")
    return key


def sign(keys: Sequence[bytes], *, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers for exactly these bytes; at least one key."""
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp_s),
        SIGNATURE_HEADER: " ".join(f"v1,{_signature(key, message_id, str(timestamp_s), body)}" for key in keys),
    }


def verify(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now_s: float) -> str:
    """The id of a message that was signed with one of the keys, within five minutes of ``now_s``. Raises ``SignatureError``.

    ``headers``: by their names in small letters. The time that it takes tells nothing about keys and signatures.
    """
    message_id, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    if not message_id or not timestamp or SIGNATURE_HEADER not in headers:
        raise SignatureError(f"{ID_HEADER}, {TIMESTAMP_HEADER} and {SIGNATURE_HEADER} are required")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise SignatureError(f"{TIMESTAMP_HEADER} is not a number of seconds")
    if abs(int(timestamp) - now_s) > TOLERANCE_S:
        raise SignatureError(f"{TIMESTAMP_HEADER} is more than {TOLERANCE_S} s from our clock")
    given = [word.removeprefix("v1,") for word in headers[SIGNATURE_HEADER].split() if word.startswith("v1,")]
    expected = [_signature(key, message_id, timestamp, body).encode() for key in keys]
    matches = [hmac.compare_digest(one.encode(errors="replace"), other) for one in given[:_MOST_SIGNATURES] for other in expected]
    if not any(matches):
        raise SignatureError("no signature matches")
    return message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode(errors="replace") + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


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
