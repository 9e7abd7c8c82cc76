"""The receiver of webhooks, as an ASGI application: Alertmanager's (version 4) and Grafana's.

What it answers with 200 is kept. A delivery that it cannot keep, or has no room for, gets 503, because a sender retries that; 4xx
is only for what would never be accepted. What is done about a delivery comes afterwards (``receiving.worker``).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rankscope.alerts.output import alert_line
from rankscope.alerts.receive.authentication import UNGUESSABLE, Failures, Headers, Ways
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.inbox import BusyError, Inbox, InboxError
from rankscope.alerts.receive.notification import Notification, NotUnderstoodError, read_notification
from rankscope.base.text import one_line

MAX_BODY_BYTES: Final = 1024 * 1024
BODY_TIMEOUT_S: Final = 15.0
LOOK_S: Final = 5.0
"""After a delivery that could not be stored, whoever asks has the disk looked at, so often at most."""
CHALLENGE: Final = b'Bearer, Basic realm="rankscope"'

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_T = TypeVar("_T")

_READ: Final = ("GET", "HEAD")
_PATHS: Final = {
    "/webhook": ("POST",),
    "/deliveries": _READ,
    "/metrics": _READ,
    "/-/healthy": _READ,
    "/-/ready": _READ,
}
_TEXT: Final = b"text/plain; charset=utf-8"


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted payload, as it came but for the white space."""

    received_unix_ns: int
    payload: msgspec.Raw


class Deliveries(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /deliveries``: the last accepted payloads, oldest first, and how many there were in all."""

    total: int
    deliveries: list[Received]


class _Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """Answer with this status and one line of text."""

    def __init__(self, status: int, reason: str, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """For the count."""
        self.text = text
        self.headers = headers


class ReceiverApp:
    """The ASGI application.

    ``show`` takes one line per alert and never raises; ``report`` takes what is wrong, and ``accepted`` is called after something
    was kept, both from other threads as well. With ``out`` every accepted payload is appended to that file as one line of JSON
    (``Received``) before it is acknowledged.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        show: Callable[[str], object],
        report: Callable[[str], object],
        out: Path | None = None,
        ways: Ways | None = None,
        counters: Counters | None = None,
        accepted: Callable[[], object] = lambda: None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._show = show
        self._report = report
        self._out = out
        self._ways = ways or Ways()
        self._failures = Failures(report)
        self._counters = counters or Counters()
        self._accepted = accepted
        self._clock = clock
        # The disk may take its time, and the loop has others to serve meanwhile.
        self._keeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inbox")
        self._writable = True
        self._looked_s = -math.inf

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        try:
            status, kind, body = await self._answer(scope, receive)
            headers: tuple[tuple[bytes, bytes], ...] = ()
        except _Refused as refused:
            self._counters.add("refused", reason=refused.reason)
            status, kind, body = refused.status, _TEXT, f"{refused.text}\n".encode()
            headers = refused.headers
        start = [
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-store"),
            *headers,
        ]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: _Scope, receive: _Receive) -> tuple[int, bytes, bytes]:
        method, path = scope["method"], scope["path"]
        allowed = _PATHS.get(path)
        if allowed is None:
            raise _Refused(404, "not_found", "POST /webhook, GET /deliveries, /metrics, /-/healthy, /-/ready")
        if method not in allowed:
            raise _Refused(405, "method", f"only {', '.join(allowed)}", ((b"allow", ", ".join(allowed).encode()),))
        match path:
            case "/webhook":
                headers, body = await self._authenticated(scope, receive, with_body=True)
                return await self._take(headers, body)
            case "/deliveries":
                await self._authenticated(scope, receive, with_body=False)
                return 200, b"application/json", msgspec.json.encode(await self._off_loop(self._listing))
            case "/metrics":
                return 200, b"text/plain; version=0.0.4; charset=utf-8", await self._off_loop(self._metrics)
            case "/-/ready":
                return await self._readiness()
        return 200, _TEXT, b"ok\n"

    async def _authenticated(self, scope: _Scope, receive: _Receive, *, with_body: bool) -> tuple[Headers, bytes]:
        """Headers and body of a request by somebody who may make it."""
        address = (scope.get("client") or ("",))[0]
        left_s = self._failures.shut_out_s(address) if self._ways.any else 0.0
        shortest = UNGUESSABLE if left_s else 0
        times = Counter(name for name, _ in scope["headers"])
        headers = {name: value for name, value in scope["headers"] if times[name] == 1}
        known = not self._ways.any or self._ways.by_header(headers, shortest=shortest)
        if not known and not (self._ways.signed or self._ways.grafana):
            raise self._stranger(address, left_s)
        body = await _body(scope, receive) if with_body or not known else b""
        if not known and not self._ways.by_signature(headers, body, now_s=time.time(), shortest=shortest):
            raise self._stranger(address, left_s)
        return headers, body

    def _stranger(self, address: str, left_s: float) -> _Refused:
        if left_s:
            return _Refused(503, "failed_attempts", "too many failed attempts from this address", _later(left_s))
        self._failures.failed(address)
        headers = ((b"www-authenticate", CHALLENGE), (b"connection", b"close"))
        return _Refused(401, "not_authenticated", "who are you? The credentials are missing or wrong", headers)

    async def _take(self, headers: Headers, body: bytes) -> tuple[int, bytes, bytes]:
        said, body = await self._off_loop(lambda: _read(body))
        message = headers.get(b"webhook-id")
        # With the body: an id that somebody uses twice must not lose what it stands for the second time.
        key = None if message is None else hashlib.sha256(message + b"\0" + body).hexdigest()
        new = await self._off_loop(lambda: self._keep(body, key))
        if not new:
            self._counters.add("duplicates")
            return 200, b"application/json", b'{"accepted": true, "duplicate": true}\n'
        self._counters.add("deliveries", sender=said.source)
        self._shown(said)
        self._accepted()
        return 200, b"application/json", b'{"accepted": true}\n'

    def _keep(self, body: bytes, key: str | None) -> bool:
        now = self._clock()
        try:
            new = self._inbox.accept(body, key=key, now_unix_ns=now, also=lambda: self._append(body, now))
        except BusyError as error:
            raise _Refused(503, "busy", f"busy: {error}; try again", _later(10)) from error
        except InboxError as error:
            self._troubled(str(error))
            raise _Refused(503, "not_stored", "cannot store the delivery", _later(5)) from error
        except OSError as error:
            self._troubled(f"{self._out}: cannot be written: {error.strerror or error}")
            raise _Refused(503, "not_stored", "cannot store the delivery", _later(5)) from error
        self._works()
        return new

    def _append(self, body: bytes, now_unix_ns: int) -> None:
        if self._out is not None:
            with self._out.open("ab") as file:
                file.write(msgspec.json.encode(Received(received_unix_ns=now_unix_ns, payload=msgspec.Raw(body))) + b"\n")

    def _troubled(self, what: str) -> None:
        self._looked_s = time.monotonic()
        if self._writable:
            self._writable = False
            self._report(f"{what}; senders are asked to try again")

    def _works(self) -> None:
        if not self._writable:
            self._writable = True
            self._report("deliveries can be stored again")

    def _shown(self, said: Notification) -> None:
        for alert in said.alerts:
            self._show(alert_line(f"{alert.status.upper():<8}", alert.labels, alert.annotations))
        if said.truncated_alerts:
            self._show(f"… and {said.truncated_alerts} more that {one_line(said.source)} left out")

    def _listing(self) -> Deliveries:
        total, kept = self._inbox.kept()
        received = [Received(received_unix_ns=one.received_unix_ns, payload=msgspec.Raw(one.body)) for one in kept]
        return Deliveries(total=total, deliveries=received)

    def _metrics(self) -> bytes:
        waiting, oldest = self._inbox.waiting_count()
        age_s = 0.0 if oldest is None else max(0.0, (self._clock() - oldest) / 1e9)
        return self._counters.page(waiting=waiting, oldest_waiting_seconds=age_s, writable=int(self._writable))

    async def _readiness(self) -> tuple[int, bytes, bytes]:
        if self._writable:
            await self._off_loop(self._inbox.check)
        elif not await self._off_loop(self._has_room):
            raise _Refused(503, "not_ready", "the last delivery could not be stored", _later(LOOK_S))
        return 200, _TEXT, b"ready\n"

    def _has_room(self) -> bool:
        """Whether there is room again: as long as we are not ready nobody may send what would show it."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            try:
                # A full disk may have room for a word and not for a delivery.
                self._inbox.check(room_bytes=MAX_BODY_BYTES)
                if self._out is None or _may_grow(self._out):
                    self._works()
            except InboxError:
                pass
        return self._writable

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._keeper, work)
        except InboxError as error:
            raise _Refused(503, "not_ready", str(error), _later(5)) from error


def _may_grow(out: Path) -> bool:
    try:
        out.open("ab").close()
        return shutil.disk_usage(out).free >= MAX_BODY_BYTES
    except OSError:
        return False


def _later(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"retry-after", b"%d" % max(1, round(seconds))),)


def _read(body: bytes) -> tuple[Notification, bytes]:
    """What a body says, and the body as it is kept: formatted anew, so that it is one line."""
    try:
        return read_notification(body), msgspec.json.format(body, indent=-1)
    except NotUnderstoodError as error:
        raise _Refused(400, "not_understood", str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Refused(400, "not_understood", "not a webhook payload: nested too deeply, or no JSON") from error


async def _body(scope: _Scope, receive: _Receive) -> bytes:
    close = ((b"connection", b"close"),)
    too_large = _Refused(413, "too_large", f"more than {MAX_BODY_BYTES} bytes", close)
    length = dict(scope["headers"]).get(b"content-length", b"")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refused(400, "cut_off", "the connection was closed early")
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise _Refused(408, "slow", "the body did not arrive in time", close) from error
