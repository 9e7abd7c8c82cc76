"""The receiver of webhooks, as an ASGI application: Alertmanager's (version 4) and Grafana's.

A delivery that is answered with 200 is on disk. One that cannot be stored, or for which there is no room, gets 503, because
senders retry 5xx. Faults of the sender get 4xx. ``receive.worker`` processes deliveries afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.output import alert_line
from rankscope.alerts.receive.authentication import UNGUESSABLE, Credentials, Failures, Headers
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.inbox import BusyError, Inbox
from rankscope.alerts.receive.notification import Notification, NotUnderstoodError, read_notification
from rankscope.alerts.store.database import StoreError
from rankscope.base.text import one_line

MAX_BODY_BYTES: Final = 16 * 2**20
"""2,000 of the largest alerts of our own rules, with long labels, weigh 11 MiB: tests/alerts/receive/test_refusals.py."""
MAX_BODIES_BYTES: Final = 64 * 2**20
"""Total size of the bodies of all open requests; further senders get 503."""
BODY_TIMEOUT_S: Final = 15.0
PROBE_S: Final = 5.0
"""After a delivery that could not be stored, the disk is probed this often until it can be written."""
REFUSALS_S: Final = 60.0
"""Further refusals for one reason are reported together after this long."""
CHALLENGE: Final = b'Bearer, Basic realm="rankscope"'

REPORTED_FAILURES: Final = ("not_authenticated", "failed_attempts")
"""Reported by ``authentication.Failures``, by address."""

EVICTED: Final = "evicted"
"""Reason of a connection that was closed before its answer, to make room for another."""

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


class AcceptedPayload(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted payload, unchanged except for white space."""

    received_unix_ns: int
    payload: msgspec.Raw


class Deliveries(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ``GET /deliveries``: the last accepted payloads, oldest first, and the total number so far."""

    total: int
    deliveries: list[AcceptedPayload]


class _Refused(Exception):  # noqa: N818 - an HTTP answer, not an error
    """Refusal of a request, with a status and one line of text."""

    def __init__(self, status: int, reason: str, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """Label of the counter."""
        self.text = text
        self.headers = headers


class _Refusals:
    """Reports refused deliveries: the first for a reason at once, the number of further ones after ``REFUSALS_S``."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._further: dict[str, int] = {}

    def add(self, refused: _Refused, client: str) -> None:
        """Report a refusal. Runs in the event loop."""
        self._add(refused.reason, client, f"with {refused.status} ({refused.reason}): {refused.text}")

    def add_evicted(self, client: str) -> None:
        """Report a connection that was closed before its answer. Runs in the event loop."""
        self._add(EVICTED, client, f"without an answer ({EVICTED}): too many connections are open, the sender has to try again")

    def _add(self, reason: str, client: str, how: str) -> None:
        if reason in self._further:
            self._further[reason] += 1
            return
        self._further[reason] = 0
        self._report(f"refused a delivery from {one_line(client) or 'an unknown address'} {how}")
        asyncio.get_running_loop().call_later(REFUSALS_S, self._summarise, reason)

    def _summarise(self, reason: str) -> None:
        if further := self._further.pop(reason):
            self._report(f"refused {further} more deliveries within {REFUSALS_S:g} s ({reason})")


class _Bodies:
    """Memory used by the bodies of all open requests."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """Reserve memory for one body, chunk by chunk, until its request is answered."""
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            reserved += size
            self.bytes += size
            if self.bytes > MAX_BODIES_BYTES:
                raise _Refused(503, "busy", "too many large deliveries arrive at once; try again", (_CLOSE, *_later(1)))

        try:
            yield reserve
        finally:
            self.bytes -= reserved


class ReceiverApp:
    """The ASGI application.

    ``show`` takes one line per alert and never raises. ``report`` takes problems. ``accepted`` is called after a delivery was
    stored. ``report`` and ``accepted`` must be thread-safe. The metrics count the messages in ``outbox``. With ``out`` every
    accepted payload is appended to that file as one line of JSON (``AcceptedPayload``) before it is acknowledged.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        show: Callable[[str], object],
        report: Callable[[str], object],
        out: Path | None = None,
        credentials: Credentials | None = None,
        counters: Counters | None = None,
        accepted: Callable[[], object] = lambda: None,
        outbox: Outbox | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._show = show
        self._report = report
        self._out = out
        self._credentials = credentials or Credentials()
        self._failures = Failures(report)
        self._counters = counters or Counters()
        self._accepted = accepted
        self._clock = clock
        # A slow disk must not block the event loop.
        self._keeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inbox")
        self._writable = True
        self._refusals = _Refusals(report)
        self._bodies = _Bodies()
        self._probe: asyncio.Task[None] | None = None

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        try:
            status, kind, body = await self._answer(scope, receive)
            headers: tuple[tuple[bytes, bytes], ...] = ()
        except _Refused as refused:
            self._counters.add("refused", reason=refused.reason)
            if scope["path"] == "/webhook" and refused.reason not in REPORTED_FAILURES:
                self._refusals.add(refused, (scope.get("client") or ("",))[0])
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

    def evicted(self, address: str) -> None:
        """Count and report a client whose request was cut off because too many connections are open."""
        self._counters.add("refused", reason=EVICTED)
        self._refusals.add_evicted(address)

    async def _answer(self, scope: _Scope, receive: _Receive) -> tuple[int, bytes, bytes]:
        method, path = scope["method"], scope["path"]
        allowed = _PATHS.get(path)
        if allowed is None:
            raise _Refused(404, "not_found", "POST /webhook, GET /deliveries, /metrics, /-/healthy, /-/ready")
        if method not in allowed:
            raise _Refused(405, "method", f"only {', '.join(allowed)}", ((b"allow", ", ".join(allowed).encode()),))
        match path:
            case "/webhook":
                with self._bodies.one() as reserve:
                    headers, body = await self._authenticated(scope, receive, reserve, with_body=True)
                    return await self._take(headers, body)
            case "/deliveries":
                with self._bodies.one() as reserve:
                    await self._authenticated(scope, receive, reserve, with_body=False)
                return 200, b"application/json", msgspec.json.encode(await self._off_loop(self._listing))
            case "/metrics":
                return 200, b"text/plain; version=0.0.4; charset=utf-8", await self._off_loop(self._metrics)
            case "/-/ready":
                if not self._writable:
                    raise _Refused(503, "not_ready", "the last delivery could not be stored", _later(PROBE_S))
                return 200, _TEXT, b"ready\n"
        return 200, _TEXT, b"ok\n"

    async def _authenticated(
        self, scope: _Scope, receive: _Receive, reserve: Callable[[int], None], *, with_body: bool
    ) -> tuple[Headers, bytes]:
        """Authenticate a request, and return its headers and body. Raises ``_Refused``."""
        address = (scope.get("client") or ("",))[0]
        left_s = self._failures.blocked_s(address) if self._credentials.any else 0.0
        shortest = UNGUESSABLE if left_s else 0
        times = Counter(name for name, _ in scope["headers"])
        headers = {name: value for name, value in scope["headers"] if times[name] == 1}
        known = not self._credentials.any or self._credentials.by_header(headers, shortest=shortest)
        if not known and not (self._credentials.signed or self._credentials.grafana):
            raise self._stranger(address, left_s)
        body = await _body(scope, receive, reserve) if with_body or not known else b""
        if not known and not self._credentials.by_signature(headers, body, now_s=time.time(), shortest=shortest):
            raise self._stranger(address, left_s)
        return headers, body

    def _stranger(self, address: str, left_s: float) -> _Refused:
        if left_s:
            return _Refused(503, "failed_attempts", "too many failed attempts from this address", _later(left_s))
        self._failures.failed(address)
        headers = ((b"www-authenticate", CHALLENGE), (b"connection", b"close"))
        return _Refused(401, "not_authenticated", "credentials are missing or wrong", headers)

    async def _take(self, headers: Headers, body: bytes) -> tuple[int, bytes, bytes]:
        notification, new = await self._off_loop(lambda: self._keep(headers.get(b"webhook-id"), body))
        if not new:
            self._counters.add("duplicates")
            return 200, b"application/json", b'{"accepted": true, "duplicate": true}\n'
        self._counters.add("deliveries", sender=notification.source)
        self._show_alerts(notification)
        self._accepted()
        return 200, b"application/json", b'{"accepted": true}\n'

    def _keep(self, message_id: bytes | None, body: bytes) -> tuple[Notification, bool]:
        notification, body = _read(body)
        # Includes the body: if a sender uses an id twice, the second delivery must not be lost.
        key = None if message_id is None else hashlib.sha256(message_id + b"\0" + body).hexdigest()
        now = self._clock()
        try:
            new = self._inbox.accept(body, key=key, now_unix_ns=now, also=lambda: self._append(body, now))
        except BusyError as error:
            raise _Refused(503, "busy", f"busy: {error}; try again", _later(10)) from error
        except StoreError as error:
            raise self._not_stored(str(error)) from error
        except OSError as error:
            raise self._not_stored(f"{self._out}: cannot be written: {error.strerror or error}") from error
        self._stored()
        return notification, new

    def _append(self, body: bytes, now_unix_ns: int) -> None:
        if self._out is not None:
            with self._out.open("ab") as file:
                file.write(msgspec.json.encode(AcceptedPayload(received_unix_ns=now_unix_ns, payload=msgspec.Raw(body))) + b"\n")

    def _not_stored(self, reason: str) -> _Refused:
        if self._writable:
            self._writable = False
            self._report(f"{reason}; senders get 503 and retry")
        return _Refused(503, "not_stored", "cannot store the delivery", _later(5))

    def _stored(self) -> None:
        if not self._writable:
            self._writable = True
            self._report("deliveries can be stored again")

    def _show_alerts(self, notification: Notification) -> None:
        for alert in notification.alerts:
            self._show(alert_line(f"{alert.status.upper():<8}", alert.labels, alert.annotations))
        if notification.truncated_alerts:
            self._show(f"… and {notification.truncated_alerts} more, left out by {one_line(notification.source)}")

    def _listing(self) -> Deliveries:
        total, kept = self._inbox.kept()
        received = [AcceptedPayload(received_unix_ns=one.received_unix_ns, payload=msgspec.Raw(one.body)) for one in kept]
        return Deliveries(total=total, deliveries=received)

    def _metrics(self) -> bytes:
        waiting, oldest = self._inbox.waiting_count()
        age_s = 0.0 if oldest is None else max(0.0, (self._clock() - oldest) / 1e9)
        undelivered, undelivered_s = (0, 0.0) if self._outbox is None else self._outbox.backlog()
        return self._counters.page(
            waiting=waiting,
            oldest_waiting_seconds=age_s,
            undelivered_messages=undelivered,
            oldest_undelivered_seconds=undelivered_s,
            writable=int(self._writable),
        )

    async def _probe_disk(self) -> None:
        """Probe the disk until it is writable: a receiver that is not ready may get no delivery that would show it."""
        while not self._writable:
            await asyncio.sleep(PROBE_S)
            await asyncio.get_running_loop().run_in_executor(self._keeper, self._probe_once)

    def _probe_once(self) -> None:
        if not self._writable:
            with suppress(StoreError):
                # A full disk may have room for a few bytes, but not for a delivery.
                self._inbox.store.probe(MAX_BODY_BYTES)
                if self._out is None or _may_grow(self._out):
                    self._stored()

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._keeper, work)
        except StoreError as error:
            raise _Refused(503, "not_ready", str(error), _later(5)) from error
        finally:
            if not self._writable and (self._probe is None or self._probe.done()):
                self._probe = loop.create_task(self._probe_disk())


def _may_grow(out: Path) -> bool:
    try:
        out.open("ab").close()
        return shutil.disk_usage(out).free >= MAX_BODY_BYTES
    except OSError:
        return False


_CLOSE: Final = (b"connection", b"close")


def _later(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"retry-after", b"%d" % max(1, round(seconds))),)


def _read(body: bytes) -> tuple[Notification, bytes]:
    """Decode a body; returns the notification and the body on one line, as it is stored."""
    try:
        return read_notification(body), msgspec.json.format(body, indent=-1)
    except NotUnderstoodError as error:
        raise _Refused(400, "not_understood", str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Refused(400, "not_understood", "not a webhook payload: nested too deeply, or no JSON") from error


async def _body(scope: _Scope, receive: _Receive, reserve: Callable[[int], None]) -> bytes:
    advice = f"the body is larger than {MAX_BODY_BYTES} bytes; set max_alerts in Alertmanager's webhook_configs"
    too_large = _Refused(413, "too_large", advice, (_CLOSE,))
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
                chunk = message.get("body", b"")
                reserve(len(chunk))
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise _Refused(408, "slow", "the body did not arrive in time", (_CLOSE,)) from error
