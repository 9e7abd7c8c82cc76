"""The secret token that grants access to the pages, and the sessions derived from it.

A session is a cookie signed with a key derived from the token. Every worker can verify it, also after a restart, without stored
state. A new token ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError

VARIABLE: Final = "RANKSCOPE_DASHBOARD_TOKEN"
SESSION_S: Final = 12 * 3600
MIN_LETTERS: Final = 24
MIN_DIFFERENT: Final = 8
"""Least number of different characters, since a repeated character is long but easy to guess."""
MAX_BYTES: Final = 4096

_HOW: Final = "make one with: openssl rand -hex 32"
_SESSION: Final = re.compile(r"([0-9]{1,12}\.[0-9a-f]{32})\.([0-9a-f]{64})", re.ASCII)


class Token:
    """A secret token. Raises ``ValueError`` for one that is easy to guess, with advice for a better one."""

    def __init__(self, secret: str, *, clock_s: Callable[[], float] = time.time) -> None:
        if not secret.isascii() or not secret.isprintable() or len(secret.split()) != 1:
            raise ValueError(f"a token is one word of ASCII letters and digits; {_HOW}")
        if len(secret) < MIN_LETTERS or len(set(secret)) < MIN_DIFFERENT:
            raise ValueError(
                f"too easy to guess: a token has {MIN_LETTERS} characters or more, {MIN_DIFFERENT} of them different; {_HOW}"
            )
        self._secret = secret.encode()
        self._clock_s = clock_s
        # Slow on purpose, so that a stolen cookie does not allow guessing the token offline.
        self._key = hashlib.scrypt(self._secret, salt=b"rankscope dashboard session", n=2**14, r=8, p=1, dklen=32)
        self.cookie = f"rankscope-{hashlib.sha256(self._key).hexdigest()[:8]}"
        """Name of the cookie, so that dashboards on different ports of one host do not share one."""

    def matches(self, given: str) -> bool:
        """Return whether ``given`` is the token, in constant time."""
        return hmac.compare_digest(given.encode(errors="replace"), self._secret)

    def new_session(self) -> str:
        """Return the cookie value of a new session, valid for ``SESSION_S``."""
        about = f"{int(self._clock_s()) + SESSION_S}.{secrets.token_hex(16)}"
        return f"{about}.{self._signature(about)}"

    def is_session(self, cookie: str) -> bool:
        """Return whether the cookie is a session of this token that has not expired."""
        match = _SESSION.fullmatch(cookie)
        if match is None or not hmac.compare_digest(match[2], self._signature(match[1])):
            return False
        return self._clock_s() < int(match[1].partition(".")[0])

    def _signature(self, about: str) -> str:
        return hmac.new(self._key, about.encode(), hashlib.sha256).hexdigest()


def read_token(path: Path) -> Token:
    """Read the token in a file. Raises ``InputError``."""
    try:
        with path.open("rb") as file:
            secret = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(path, f"{error.strerror or error}; name another file with --token-file") from error
    if len(secret) > MAX_BYTES:
        raise InputError(path, f"more than {MAX_BYTES} bytes: this is no token; {_HOW}")
    return token_of(secret.decode("latin-1"), path)


def token_of(secret: str, where: Path | str) -> Token:
    """Return the token found at ``where``. Raises ``InputError``."""
    try:
        return Token(secret.strip())
    except ValueError as error:
        raise InputError(where, str(error)) from error
