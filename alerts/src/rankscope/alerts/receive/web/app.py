"""The receiver of webhooks, as an ASGI application: Alertmanager's (version 4) and Grafana's.

A delivery that is answered with 200 is on disk. One that cannot be stored, or for which there is no room, gets 503, because
senders retry 5xx. Faults of the sender get 4xx. ``receive.worker`` processes deliveries afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.output import alert_line
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.inbox import Inbox, InboxFullError
from rankscope.alerts.receive.notification import Notification, NotUnderstoodError, read_notification
from rankscope.alerts.receive.web.authentication import Credentials, Headers
from rankscope.alerts.receive.web.bodies import MAX_BODY_BYTES, BodyBudget, Receive, Scope
from rankscope.alerts.receive.web.refusals import CLOSE, EVICTED, Refusal, RefusalLog, retry_after
from rankscope.alerts.store.database import StoreError
from rankscope.base.exposition import TEXT_TYPE
from rankscope.base.followed_files import SharedReading
from rankscope.base.http import is_loopback
from rankscope.base.text import one_line

logger = logging.getLogger(__name__)

MAX_BODIES_BYTES: Final = 80 * 2**20
"""Total size of the bodies of all open requests of authenticated senders; further ones get 503."""
MAX_UNPROVEN_BODIES_BYTES: Final = 40 * 2**20
"""The same for all others: those with a signature over the body, which is checked afterwards, and those without any proof."""
PROBE_S: Final = 5.0
"""After a delivery that could not be stored, the disk is probed this often until it can be written."""
CHALLENGE: Final = b'Bearer, Basic realm="rankscope"'

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
        self.credentials = credentials or Credentials()
        """Accepted credentials; they may be replaced."""
        self.reloaded = True
        """The last SIGHUP could read the configuration."""
        self._counters = counters or Counters()
        self._accepted = accepted
        self._clock = clock
        # A slow disk must not block the event loop.
        self._keeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inbox")
        self._secrets = SharedReading(self._read_secrets)
        self._writable = True
        self._refusals = RefusalLog(report)
        self._bodies = BodyBudget(MAX_BODIES_BYTES, evicts=False)
        self._unproven_bodies = BodyBudget(MAX_UNPROVEN_BODIES_BYTES, evicts=True)
        self._probe: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: _Send) -> None:
        """Answer one request."""
        try:
            status, kind, body = await self._answer(scope, receive)
            headers: tuple[tuple[bytes, bytes], ...] = ()
        except Refusal as refused:
            self._counters.add("refused", reason=refused.reason)
            if scope["path"] == "/webhook" or refused.reason == "not_authenticated":
                self._refusals.add(refused, _address(scope))
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

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, bytes]:
        method, path = scope["method"], scope["path"]
        allowed = _PATHS.get(path)
        if allowed is None:
            raise Refusal(404, "not_found", "POST /webhook, GET /deliveries, /metrics, /-/healthy, /-/ready")
        if method not in allowed:
            raise Refusal(405, "method", f"only {', '.join(allowed)}", ((b"allow", ", ".join(allowed).encode()),))
        headers = _headers(scope)
        if b"origin" in dict(scope["headers"]):
            raise Refusal(403, "cross_site", "web pages may not send requests here")
        match path:
            case "/webhook":
                if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
                    raise Refusal(415, "content_type", "only Content-Type: application/json", (CLOSE,))
                async with self._authenticated(scope, receive, headers) as body:
                    return await self._take(headers, body)
            case "/deliveries":
                async with self._authenticated(scope, receive, headers):
                    return 200, b"application/json", msgspec.json.encode(await self._off_loop(self._listing))
            case "/metrics":
                return 200, TEXT_TYPE.encode(), await self._off_loop(self._metrics)
            case "/-/ready":
                if not self._writable:
                    raise Refusal(503, "not_ready", "the last delivery could not be stored", retry_after(PROBE_S))
                return 200, _TEXT, b"ready\n"
        return 200, _TEXT, b"ok\n"

    @asynccontextmanager
    async def _authenticated(self, scope: Scope, receive: Receive, headers: Headers) -> AsyncIterator[bytes]:
        """Authenticate a request, and yield its body. Raises ``Refusal``.

        Nothing of the body is read before its sender has shown a secret, or headers of a signature that may fit.
        """
        if not self.credentials.required:
            if not is_loopback(_host(headers)):
                # A web page whose name has been made to resolve to this machine would be taken for one of ours by the browser.
                raise Refusal(403, "cross_site", "without credentials, only requests to localhost are accepted", (CLOSE,))
            admitted = True
        else:
            await self._secrets.run()
            admitted = self.credentials.by_header(headers)
            if not admitted and not self.credentials.may_be_signed(headers, now_s=time.time()):
                raise _unauthenticated()
        proven = admitted and self.credentials.required
        budget = self._bodies if proven else self._unproven_bodies
        with budget.body(_address(scope)) as body:
            data = await budget.read(scope, receive, body)
            # In a thread: the hash of a large body takes a while.
            if not admitted and not await asyncio.to_thread(self.credentials.by_signature, headers, data, now_s=time.time()):
                raise _unauthenticated()
            yield data

    def _read_secrets(self) -> None:
        self.credentials.read_again()

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
        except InboxFullError as error:
            raise Refusal(503, "busy", f"busy: {error}; try again", retry_after(10)) from error
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

    def _not_stored(self, reason: str) -> Refusal:
        if self._writable:
            self._writable = False
            self._report(f"{reason}; senders get 503 and retry")
        return Refusal(503, "not_stored", "cannot store the delivery", retry_after(5))

    def _stored(self) -> None:
        if not self._writable:
            self._writable = True
            logger.info("deliveries can be stored again")

    def _show_alerts(self, notification: Notification) -> None:
        for alert in notification.alerts:
            self._show(alert_line(f"{alert.status.upper():<8}", alert.labels, alert.annotations))
        if notification.truncated_alerts:
            self._show(f"… and {notification.truncated_alerts} more, left out by {one_line(notification.source)}")

    def _listing(self) -> Deliveries:
        total, deliveries = self._inbox.kept_deliveries()
        received = [
            AcceptedPayload(received_unix_ns=delivery.received_unix_ns, payload=msgspec.Raw(delivery.body))
            for delivery in deliveries
        ]
        return Deliveries(total=total, deliveries=received)

    def _metrics(self) -> bytes:
        waiting, oldest = self._inbox.waiting_count()
        age_s = 0.0 if oldest is None else max(0.0, (self._clock() - oldest) / 1e9)
        undelivered, undelivered_s = (0, 0.0) if self._outbox is None else self._outbox.backlog()
        return self._counters.page(
            store_id=self._inbox.store.id,
            waiting=waiting,
            oldest_waiting_seconds=age_s,
            undelivered_messages=undelivered,
            oldest_undelivered_seconds=undelivered_s,
            writable=int(self._writable),
            config_last_reload_successful=int(self.reloaded),
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
            raise Refusal(503, "not_ready", str(error), retry_after(5)) from error
        finally:
            if not self._writable and (self._probe is None or self._probe.done()):
                self._probe = loop.create_task(self._probe_disk())


def _may_grow(out: Path) -> bool:
    try:
        out.open("ab").close()
        return shutil.disk_usage(out).free >= MAX_BODY_BYTES
    except OSError:
        return False


def _address(scope: Scope) -> str:
    return (scope.get("client") or ("",))[0]


def _headers(scope: Scope) -> Headers:
    times = Counter(name for name, _ in scope["headers"])
    return {name: value for name, value in scope["headers"] if times[name] == 1}


def _host(headers: Headers) -> str:
    """Return the host of the ``Host`` header, without its port; empty if there is none."""
    try:
        return urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _unauthenticated() -> Refusal:
    headers = ((b"www-authenticate", CHALLENGE), CLOSE)
    return Refusal(401, "not_authenticated", "credentials are missing or wrong", headers)


def _read(body: bytes) -> tuple[Notification, bytes]:
    """Decode a body; returns the notification and the body on one line, as it is stored."""
    try:
        return read_notification(body), msgspec.json.format(body, indent=-1)
    except NotUnderstoodError as error:
        raise Refusal(400, "not_understood", str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(400, "not_understood", "not a webhook payload: nested too deeply, or no JSON") from error
