"""Access over HTTP: the web configuration in force, read again when its files change, and the passwords of its users."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import secrets
import ssl
import time
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.followed_files import FollowedFiles
from rankscope.base.http import HttpRequest, Response, basic_credentials
from rankscope.base.problems import ProblemLog
from rankscope.exporter.web.config import WebConfig, load_web_config

logger = logging.getLogger(__name__)

PAUSE_S: Final = 1.0
"""Seconds between a wrong password and the next check for the same network, divided by the number of its waiting clients."""

_REMEMBERED: Final = 256

_UNAUTHORIZED: Final = Response(
    401, b"unauthorized\n", headers=(("www-authenticate", 'Basic realm="rankscope", charset="UTF-8"'),)
)


class WebAccess:
    """The web configuration at ``path`` (None: plain HTTP without users), checked for changes at most once a second.

    If a changed configuration is invalid, the reason is logged and the last valid one stays in force. If the first one is
    invalid, this raises what ``load_web_config`` raises.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._protected = False
        self._problems = ProblemLog(partial(logger.warning, "the web configuration stays as it was: %s"))
        self._config = FollowedFiles(self._read, changed=self._changed, failed=self._failed)

    @property
    def scheme(self) -> str:
        """``https`` or ``http``."""
        return "http" if self._config.value.web.tls is None else "https"

    def follow(self, path: Path | None) -> None:
        """Read ``path``, or the same file again, and use it from now on; if it is invalid, log why and keep the last one.

        May block as long as the file system does.
        """
        before, self._path = self._path, path
        if (before, path) != (None, None) and not self._config.read_again():
            self._path = before

    async def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next handshake; None for plain connections."""
        return (await self._config.get()).web.tls

    def admits(self, transport: Any) -> bool:
        """Return whether the client's certificate is allowed; True if the configuration does not restrict certificates."""
        return self._config.value.web.admits(transport)

    async def checked(self, request: HttpRequest, *, public: bool = False) -> tuple[Response | None, WebConfig]:
        """Return the configuration in force, and None or the error response for a request without a user's right password.

        Requests need no password if no users are configured, or if what they ask for is ``public``.
        """
        web, passwords = await self._config.get()
        return (None if public or passwords is None else await passwords.refusal(request)), web

    def _read(self) -> tuple[_Access, tuple[Path, ...]]:
        web = load_web_config(self._path) if self._path is not None else WebConfig()
        protected = web.users is not None or web.tls is not None
        if self._path is not None and self._protected and not protected:
            # An editor empties a file before it writes it.
            raise InputError(self._path, "neither users nor TLS any more; to serve everyone, restart the exporter")
        self._protected = protected
        return _Access(web, None if web.users is None else Passwords(web.users)), web.files

    def _changed(self, _access: _Access) -> None:
        self._problems.report(None)
        logger.info("the web configuration was read again")

    def _failed(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, RankscopeError) else f"{type(error).__name__}: {error}"
        self._problems.report(reason)


class _Access(NamedTuple):
    """A version of the configuration, with the passwords that were checked under it."""

    web: WebConfig
    passwords: Passwords | None


class _PasswordCheck(NamedTuple):
    """A pair of name and password that awaits its check."""

    name: bytes
    password: bytes
    is_right: asyncio.Future[bool]


class Passwords:
    """Basic authentication of ``users``, names and their bcrypt hashes, at a bounded cost for scrapes and guesses.

    Right pairs of name and password are remembered by a keyed digest, and so are the last wrong ones. All others are checked one
    at a time, in turns among the clients' networks. After a wrong password, that network's next check waits for ``PAUSE_S``, or
    less if several clients wait. Guesses can therefore delay the first check of a right password, but never refuse it.
    """

    def __init__(self, users: dict[str, bytes]) -> None:
        self._users = users
        self._key = secrets.token_bytes(32)
        self._right: set[bytes] = set()  # at most one pair for each user
        self._rejected_digests: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: dict[str, list[_PasswordCheck]] = {}  # by network; the next in turn comes first
        self._paused_until: dict[str, float] = {}
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def refusal(self, request: HttpRequest) -> Response | None:
        """Return None if the request has the name and password of a user, else the error response."""
        pair = basic_credentials(request.headers.get("authorization", "").encode("latin-1", "replace"))
        if pair is None:
            return _UNAUTHORIZED
        name, password = pair
        digest = hmac.digest(self._key, b"%d:%b:%b" % (len(name), name, password), hashlib.sha256)
        if digest in self._right:
            return None
        if digest in self._rejected_digests:
            return _UNAUTHORIZED
        is_right = await self._in_turn(request, _PasswordCheck(name, password, asyncio.get_running_loop().create_future()))
        if is_right:
            self._right.add(digest)
            return None
        if is_right is not None:
            self._rejected_digests[digest] = None
            if len(self._rejected_digests) > _REMEMBERED:
                self._rejected_digests.popitem(last=False)
        return _UNAUTHORIZED

    async def _in_turn(self, request: HttpRequest, check: _PasswordCheck) -> bool | None:
        """Return whether the pair is right; None if the client disconnected before its turn."""
        network = _network(request.peer)
        self._waiting.setdefault(network, []).append(check)
        self._arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        disconnected = asyncio.ensure_future(request.disconnected())
        try:
            await asyncio.wait((check.is_right, disconnected), return_when=asyncio.FIRST_COMPLETED)
            return check.is_right.result() if check.is_right.done() else None
        finally:
            disconnected.cancel()
            self._forget(network, check)

    async def _work(self) -> None:
        """Check all waiting pairs."""
        while self._waiting:
            network = min(self._waiting, key=lambda address: self._paused_until.get(address, 0.0))
            pause_s = self._paused_until.get(network, 0.0) - time.monotonic()
            if pause_s > 0:
                self._arrived.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), pause_s)
                continue
            # In the order of arrival, a network's right password could time out behind its guesses again and again.
            check = secrets.choice(self._waiting[network])
            self._forget(network, check)
            if network in self._waiting:
                self._waiting[network] = self._waiting.pop(network)  # its next turn comes after the others'
            is_right = await asyncio.to_thread(_check, check.name, check.password, self._users)
            now_s = time.monotonic()
            self._paused_until = {address: until_s for address, until_s in self._paused_until.items() if until_s > now_s}
            if not is_right:
                self._paused_until[network] = now_s + PAUSE_S / max(1, len(self._waiting.get(network, ())))
            check.is_right.set_result(is_right)

    def _forget(self, network: str, check: _PasswordCheck) -> None:
        """Remove a check that has begun, or whose client has disconnected."""
        if check in (checks := self._waiting.get(network, [])):
            checks.remove(check)
            if not checks:
                del self._waiting[network]


def _network(peer: str) -> str:
    """Return what counts as one client: an IPv4 address, or the 64-bit prefix of an IPv6 address, which one host can own."""
    if ":" not in peer:
        return peer
    return str(ipaddress.ip_network((peer.partition("%")[0], 64), strict=False))


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
