"""One POST over HTTP: bounded time, no redirects, and no secret of an address in any message."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from rankscope.alerts.deliver.retrying import judge_status


class Deadline:
    """Deadline of a request: its connection is shut down when the time is up.

    The timeouts of httpx restart with every byte, so a receiver that sends single bytes could block us for hours.
    httpx calls ``trace``, which records each new connection.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._over = False
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            self._connection = None

    def trace(self, _event: str, info: Mapping[str, Any]) -> None:
        """Record the socket when httpx reports a new connection, plain or TLS."""
        get_info = getattr(info.get("return_value"), "get_extra_info", None)
        connection = get_info("socket") if get_info else None
        if isinstance(connection, socket.socket):
            with self._lock:
                self._connection = connection
                if self.passed:
                    _shut(connection)

    def _cut(self) -> None:
        """Mark the deadline as passed and shut down the connection, unless the request has finished."""
        with self._lock:
            if self._over:
                return
            self.passed = True
            if self._connection is not None:
                _shut(self._connection)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed
        # Not SSLSocket.shutdown: it drops the TLS state while another thread reads from it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


_THROUGH: Final = ", through the proxy "


def with_proxy(error: Exception, proxy: str) -> str:
    """Append the proxy, without its password, to the text of an error."""
    return f"{error}{_THROUGH}{redact(proxy)}"


def error_text(error: Exception, url: str, *, late: bool = False) -> str:
    """Return the text of an error, or its class name if the text contains parts of ``url``.

    ``late`` replaces the text by "no answer in time". A proxy that ``with_proxy`` appended stays.
    """
    text, separator, proxy = str(error).partition(_THROUGH)
    parts = urlsplit(url)
    secrets = [part for part in (parts.path.strip("/"), parts.query, parts.username, parts.password) if part]
    if not text or any(secret in text for secret in secrets):
        text = type(error).__name__
    return ("no answer in time" if late else text) + separator + proxy


def redact(url: str) -> str:
    """Reduce a URL to scheme, host and port for logs, because user, path and query may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = f":{parts.port}" if parts.port is not None else ""
    hidden_part = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{hidden_part}"


ATTEMPT_S: Final = 15.0
"""Seconds for one attempt, up to the headers of the answer."""
JSON: Final = {"Content-Type": "application/json"}


class DeliveryError(Exception):
    """A body was not accepted; the message gives the reason without the address."""


class NoAnswerError(DeliveryError):
    """No answer: unreachable, timed out (``late``) or disconnected. ``sent``: the body may have arrived."""

    def __init__(self, reason: str, *, sent: bool, late: bool) -> None:
        super().__init__(reason)
        self.sent = sent
        self.late = late


@dataclass(frozen=True, slots=True)
class PostResponse:
    """Status of an answer and its headers ``Retry-After`` and ``Date``; empty if absent."""

    status: int
    retry_after: str = ""
    date: str = ""


def post(
    client: httpx.Client, url: str, body: bytes, *, headers: Mapping[str, str] = JSON, attempt_s: float = ATTEMPT_S
) -> PostResponse:
    """POST ``body`` once. Raises ``NoAnswerError``, and ``DeliveryError`` for a request that cannot be made."""
    with Deadline(attempt_s) as deadline:
        try:
            # The body of the answer is never read: it is not needed and could be endless.
            with client.stream("POST", url, content=body, headers=headers, extensions={"trace": deadline.trace}) as response:
                return PostResponse(
                    response.status_code, response.headers.get("Retry-After", ""), response.headers.get("Date", "")
                )
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
            late = deadline.passed or isinstance(error, httpx.ConnectTimeout)
            raise NoAnswerError(error_text(error, url, late=late), sent=False, late=late) from error
        except httpx.LocalProtocolError as error:  # its text contains headers
            raise DeliveryError(type(error).__name__) from error
        except httpx.TransportError as error:
            late = deadline.passed or isinstance(error, httpx.TimeoutException)
            raise NoAnswerError(error_text(error, url, late=late), sent=True, late=late) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: not a host name
            raise DeliveryError(type(error).__name__) from error


def post_json(
    client: httpx.Client, url: str, body: bytes, *, headers: Mapping[str, str] = JSON, attempt_s: float = ATTEMPT_S
) -> None:
    """POST ``body`` once. Raises ``DeliveryError`` unless it was accepted (2xx)."""
    result = judge_status(post(client, url, body, headers=headers, attempt_s=attempt_s).status)
    if result.kind != "delivered":
        raise DeliveryError(result.reason)


def opaque_name(kind: str, url: str) -> str:
    """Derive a stable name of an address for the outbox, which does not reveal it."""
    return f"{kind}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
