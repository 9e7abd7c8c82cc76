"""A small receiver of Alertmanager webhooks (version 4), as an ASGI application.

It shows what arrives: for trying out routes, for demonstrations, and as the last place an alert can be read. It answers 503 when
it cannot store a delivery, because a sender retries that, and 4xx only for what would never be accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rankscope.alerts.events import alert_line
from rankscope.alerts.payload import Payload

MAX_BODY_BYTES: Final = 1024 * 1024
MAX_KEPT: Final = 200
"""Deliveries that ``GET /deliveries`` shows; older ones are only in the file."""
BODY_TIMEOUT_S: Final = 15.0

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted payload, exactly as it came."""

    received_unix_ns: int
    payload: msgspec.Raw


class Deliveries(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /deliveries``: the last accepted payloads, oldest first, and how many there were in all."""

    total: int
    deliveries: list[Received]


class _Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """Answer with this status and one line of text."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


class ReceiverApp:
    """The ASGI application.

    ``show`` takes one line per alert and never raises. With ``out`` every accepted payload is appended to that file as one line
    of JSON (``Received``) before it is acknowledged.
    """

    def __init__(
        self, *, show: Callable[[str], object], out: Path | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._show = show
        self._out = out
        self._clock = clock
        self._kept: deque[Received] = deque(maxlen=MAX_KEPT)
        self._total = 0

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        try:
            status, kind, body = await self._answer(scope, receive)
            headers: tuple[tuple[bytes, bytes], ...] = ()
        except _Refused as refused:
            status, kind, body = refused.status, b"text/plain; charset=utf-8", f"{refused.text}\n".encode()
            headers = refused.headers
        start = [
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            (b"x-content-type-options", b"nosniff"),
            *headers,
        ]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: _Scope, receive: _Receive) -> tuple[int, bytes, bytes]:
        method, path = scope["method"], scope["path"]
        allowed = {"/webhook": ("POST",), "/deliveries": ("GET", "HEAD"), "/-/healthy": ("GET", "HEAD")}.get(path)
        if allowed is None:
            raise _Refused(404, "POST /webhook, GET /deliveries, GET /-/healthy")
        if method not in allowed:
            raise _Refused(405, f"only {', '.join(allowed)}", ((b"allow", ", ".join(allowed).encode()),))
        if path == "/webhook":
            self._accept(await _body(scope, receive))
            return 200, b"application/json", b'{"accepted": true}\n'
        if path == "/deliveries":
            listing = Deliveries(total=self._total, deliveries=list(self._kept))
            return 200, b"application/json", msgspec.json.encode(listing)
        return 200, b"text/plain; charset=utf-8", b"ok\n"

    def _accept(self, body: bytes) -> None:
        try:
            payload = msgspec.json.decode(body, type=Payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Refused(400, f"not a webhook payload of version 4: {error}") from error
        # Formatted anew: a line of the file must not contain the sender's line breaks.
        delivery = Received(received_unix_ns=self._clock(), payload=msgspec.Raw(msgspec.json.format(body, indent=-1)))
        if self._out is not None:
            try:
                with self._out.open("ab") as file:
                    file.write(msgspec.json.encode(delivery) + b"\n")
            except OSError as error:
                self._show(f"{self._out}: cannot be written: {error.strerror or error}; asked the sender to try again")
                raise _Refused(503, "cannot store the delivery", ((b"retry-after", b"5"),)) from error
        self._kept.append(delivery)
        self._total += 1
        for alert in payload.alerts:
            self._show(alert_line(f"{alert.status.upper():<8}", alert.labels, alert.annotations))
        if payload.truncated_alerts:
            self._show(f"… and {payload.truncated_alerts} more that the sender left out")


async def _body(scope: _Scope, receive: _Receive) -> bytes:
    too_large = _Refused(413, f"more than {MAX_BODY_BYTES} bytes", ((b"connection", b"close"),))
    length = dict(scope["headers"]).get(b"content-length", b"")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Refused(400, "the connection was closed early")
                body += message.get("body", b"")
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise _Refused(408, "the body did not arrive in time", ((b"connection", b"close"),)) from error
