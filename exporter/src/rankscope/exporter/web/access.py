"""Who may ask over HTTP: the web configuration in force, followed as its files change, and its users' passwords."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import ssl
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from rankscope.exporter.web.config import WebConfig, load_web_config
from rankscope.exporter.web.http_connection import Request, Response

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_REMEMBERED: Final = 256
_MAX_FAILURES: Final = 10
_FAILURES_FORGOTTEN_S: Final = 60.0
_MAX_WAITING: Final = 16

_UNAUTHORIZED: Final = Response(
    401, b"unauthorized\n", headers=(("www-authenticate", 'Basic realm="rankscope", charset="UTF-8"'),)
)
_TOO_MANY: Final = Response(429, b"too many failed log-ins\n", headers=(("retry-after", str(int(_FAILURES_FORGOTTEN_S))),))

Stamp = tuple[tuple[int, int, int] | None, ...]


class WebAccess:
    """The web configuration of ``path`` (None: plain HTTP for everybody), looked at again at most once a second.

    A version that cannot be used is logged and the last good one stays in force. Raises what ``load_web_config`` raises when the
    first one cannot be used. The files are read only when they change; they belong on a local disk, because a look at them holds
    up the others who ask.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._passwords = Passwords()
        self._complaint: str | None = None
        self._looked_at = time.monotonic()
        self.web = load_web_config(path) if path is not None else WebConfig()
        self._stamp = _stamp(self.web.files)

    def follow(self, path: Path | None) -> None:
        """Use another file from now on, or the same one again; logs why not when it cannot be used."""
        before, self._path = self._path, path
        if (before, path) != (None, None) and not self._load():
            self._path = before

    def tls(self) -> ssl.SSLContext | None:
        """For the next handshake; None when connections are plain."""
        now = time.monotonic()
        if self._path is not None and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            if self._complaint is not None or _stamp(self.web.files) != self._stamp:
                self._load()
        return self.web.tls

    def admits(self, transport: Any) -> bool:
        """Whether the client's certificate, if one is asked for, is one of those allowed."""
        return self.web.admits(transport)

    async def refusal(self, request: Request) -> Response | None:
        """None for a user with the right password, and for everybody when there are no users."""
        self.tls()  # a keep-alive connection has no handshakes, and its users may have changed
        if self.web.users is None:
            return None
        return await self._passwords.refusal(request, self.web.users)

    def _load(self) -> bool:
        # Before reading: a change in between is then seen as one.
        stamp = _stamp(self.web.files)
        try:
            web = load_web_config(self._path) if self._path is not None else WebConfig()
        except Exception as error:  # noqa: BLE001  whatever it is, serving goes on with the last good one
            reason = error.message if isinstance(error, click.ClickException) else f"{type(error).__name__}: {error}"
            if reason != self._complaint:
                logger.warning("the web configuration stays as it was: %s", reason)
            self._complaint, self._stamp = reason, stamp
            return False
        if web.files != self.web.files:
            stamp = _stamp(web.files)
        self.web, self._complaint, self._stamp = web, None, stamp
        self._passwords = Passwords()
        logger.info("the web configuration was read again")
        return True


def _stamp(files: tuple[Path, ...]) -> Stamp:
    """What changes when one of the files does; None for one that is not there."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)  # noqa: PTH116  the same with fewer objects
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


class Passwords:
    """Basic authentication with bcrypt that neither guesses nor scrapers can make expensive.

    A pair of name and password is hashed once, in a thread of its own, and remembered by a keyed digest. An address with too many
    failures has to wait; other addresses, and pairs that are known to be right, do not.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "bcrypt")

    async def refusal(self, request: Request, users: dict[str, bytes]) -> Response | None:
        """None when the request names one of the users and the right password."""
        pair = _credentials(request.headers.get("authorization", ""))
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


def _credentials(header: str) -> tuple[bytes, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _check(name: bytes, password: bytes, users: dict[str, bytes]) -> bool:
    """The same work whether there is such a user or not."""
    import bcrypt

    hashed = users.get(name.decode("utf-8", "replace"))
    try:
        # Longer passwords are refused by newer versions of the library and cut off by older ones: to us they are wrong.
        fits = bcrypt.checkpw(password[:72], hashed or next(iter(users.values())))
    except ValueError:
        return False
    return fits and hashed is not None and len(password) <= 72
