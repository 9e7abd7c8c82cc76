"""The secret token that grants access to the pages, and the sessions derived from it.

A session is a cookie signed with a key derived from the token. Every worker can verify it, also after a restart, without stored
state. A new token ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from itsdangerous import BadSignature, TimestampSigner

from rankscope.base.errors import InputError

VARIABLE: Final = "RANKSCOPE_DASHBOARD_TOKEN"
SESSION_S: Final = 12 * 3600
MIN_LETTERS: Final = 24
MIN_DIFFERENT: Final = 8
"""Least number of different characters, since a repeated character is long but easy to guess."""
MAX_BYTES: Final = 4096

_HOW: Final = "make one with: openssl rand -hex 32"


class Token:
    """A secret token. Raises ``ValueError`` for one that is easy to guess, with advice for a better one."""

    def __init__(self, secret: str) -> None:
        if not secret.isascii() or not secret.isprintable() or len(secret.split()) != 1:
            raise ValueError(f"a token is one word of ASCII letters and digits; {_HOW}")
        if len(secret) < MIN_LETTERS or len(set(secret)) < MIN_DIFFERENT:
            raise ValueError(
                f"too easy to guess: a token has {MIN_LETTERS} characters or more, {MIN_DIFFERENT} of them different; {_HOW}"
            )
        self._secret = secret.encode()
        # Slow on purpose, so that a stolen cookie does not allow guessing the token offline.
        key = hashlib.scrypt(self._secret, salt=b"rankscope dashboard session", n=2**14, r=8, p=1, dklen=32)
        self._signer = TimestampSigner(key, digest_method=hashlib.sha256)
        self.cookie = f"rankscope-{hashlib.sha256(key).hexdigest()[:8]}"
        """Name of the cookie, so that dashboards on different ports of one host do not share one."""

    def matches(self, candidate: str) -> bool:
        """Return whether ``candidate`` is the token, in constant time."""
        return hmac.compare_digest(candidate.encode(errors="replace"), self._secret)

    def new_session(self) -> str:
        """Return the cookie value of a new session, valid for ``SESSION_S``."""
        return self._signer.sign("session").decode()

    def is_session(self, cookie: str) -> bool:
        """Return whether the cookie is a session of this token that has not expired."""
        try:
            self._signer.unsign(cookie.encode(errors="replace"), max_age=SESSION_S)
        except BadSignature:
            return False
        return True


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
