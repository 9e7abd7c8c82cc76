"""Access over HTTP: the web configuration in force, read again when its files change, and the passwords of its users."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import ssl
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from rankscope.base.http import FollowedFiles, Request, Response, basic_credentials
from rankscope.base.logs import ProblemLog
from rankscope.exporter.web.config import WebConfig, load_web_config

logger = logging.getLogger(__name__)

_REMEMBERED: Final = 256
_MAX_FAILURES: Final = 10
_FAILURES_FORGOTTEN_S: Final = 60.0
_MAX_WAITING: Final = 16

_UNAUTHORIZED: Final = Response(
    401, b"unauthorized\n", headers=(("www-authenticate", 'Basic realm="rankscope", charset="UTF-8"'),)
)
_TOO_MANY: Final = Response(429, b"too many failed log-ins\n", headers=(("retry-after", str(int(_FAILURES_FORGOTTEN_S))),))


class WebAccess:
    """The web configuration at ``path`` (None: plain HTTP without users), checked for changes at most once a second.

    If a changed configuration is invalid, the reason is logged and the last valid one stays in force. If the first one is
    invalid, this raises what ``load_web_config`` raises.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._passwords = Passwords()
        self._problems = ProblemLog(logger, "the web configuration stays as it was: %s")
        self._config = FollowedFiles(self._read, changed=self._changed, failed=self._failed)

    @property
    def web(self) -> WebConfig:
        """The configuration in force."""
        return self._config.get()

    def follow(self, path: Path | None) -> None:
        """Read ``path``, or the same file again, and use it from now on; if it is invalid, log why and keep the last one."""
        before, self._path = self._path, path
        if (before, path) != (None, None) and not self._config.read_again():
            self._path = before

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next handshake; None for plain connections."""
        return self.web.tls

    def admits(self, transport: Any) -> bool:
        """Return whether the client's certificate is allowed; True if the configuration does not restrict certificates."""
        return self.web.admits(transport)

    async def refusal(self, request: Request) -> Response | None:
        """Return None for a user with the right password, or if no users are configured; else the error response."""
        users = self.web.users
        return None if users is None else await self._passwords.refusal(request, users)

    def _read(self) -> tuple[WebConfig, tuple[Path, ...]]:
        web = load_web_config(self._path) if self._path is not None else WebConfig()
        return web, web.files

    def _changed(self, _web: WebConfig) -> None:
        self._problems.report(None)
        self._passwords = Passwords()
        logger.info("the web configuration was read again")

    def _failed(self, error: Exception) -> None:
        reason = error.message if isinstance(error, click.ClickException) else f"{type(error).__name__}: {error}"
        self._problems.report(reason)


class Passwords:
    """Basic authentication with bcrypt, at a bounded cost for frequent scrapes and for password guessing.

    A pair of name and password is hashed once, in a thread of its own, and cached by a keyed digest. An address with too many
    failures is refused for a while; other addresses, and pairs cached as right, are not affected.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "bcrypt")

    async def refusal(self, request: Request, users: dict[str, bytes]) -> Response | None:
        """Return None if the request has the name and password of a user, else the error response."""
        pair = basic_credentials(request.headers.get("authorization", "").encode("latin-1", "replace"))
        if pair is None:
            return _UNAUTHORIZED
        name, password = pair
        digest = hmac.digest(self._key, b"%d:%b:%b" % (len(name), name, password), hashlib.sha256)
        right = self._known.get(digest)
        if right is None:
            if self._waiting >= _MAX_WAITING or self._blocked(request.peer):
                return _TOO_MANY
            self._waiting += 1
            try:
                right = await asyncio.get_running_loop().run_in_executor(self._thread, _check, name, password, users)
            finally:
                self._waiting -= 1
            _remember(self._known, digest, right)
        if right:
            return None
        self._count_failure(request.peer)
        return _UNAUTHORIZED

    def _blocked(self, peer: str) -> bool:
        count, since = self._failures.get(peer, (0, 0.0))
        return count >= _MAX_FAILURES and time.monotonic() - since < _FAILURES_FORGOTTEN_S

    def _count_failure(self, peer: str) -> None:
        now = time.monotonic()
        count, since = self._failures.get(peer, (0, now))
        if now - since >= _FAILURES_FORGOTTEN_S:
            count, since = 0, now
        _remember(self._failures, peer, (count + 1, since))


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)


def _check(name: bytes, password: bytes, users: dict[str, bytes]) -> bool:
    """Check a password; an unknown user costs the same work, so that timing does not reveal names."""
    import bcrypt

    hashed = users.get(name.decode("utf-8", "replace"))
    try:
        # Longer passwords count as wrong: newer versions of the library refuse them, older ones truncate them.
        fits = bcrypt.checkpw(password[:72], hashed or next(iter(users.values())))
    except ValueError:
        return False
    return fits and hashed is not None and len(password) <= 72
