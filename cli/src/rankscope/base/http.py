"""Basics of HTTP servers without a server library: listening sockets, requests, responses, credentials.

    bind ──> http_server.ListenEndpoint ──> http_server.Server ──> an ASGI application

``http_server`` imports uvicorn. This module does not, so that an address in use is reported without that delay.
"""

from __future__ import annotations

import base64
import binascii
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from rankscope.base.errors import InputError

TEXT: Final = "text/plain; charset=utf-8"
MAX_BODY_BYTES: Final = 16 * 1024
"""Limit on the body of a request to a ``Handler``."""
_BACKLOG: Final = 512
_ABSOLUTE: Final = re.compile("https?://[^/?]*", re.IGNORECASE)  # the form for proxies, valid for all servers (RFC 9112)
_ANY_IPV4: Final = "0.0.0.0"  # noqa: S104  the caller asked for all addresses


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A complete request.

    ``headers`` have lower-case names; ``peer`` is the client's address, empty on a Unix socket. ``disconnected`` returns when the
    client has disconnected.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    peer: str
    tls: bool
    disconnected: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response; the server adds its length and omits the body for HEAD."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[HttpRequest], Awaitable[Response]]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. ``::`` means all IPv6 and IPv4 addresses of this machine; port 0 any free port.

    If the kernel has no IPv6, ``::`` listens on all IPv4 addresses. Raises ``OSError``, whose ``strerror`` is the reason.
    """
    dual_stack = host == "::" and socket.has_dualstack_ipv6()
    if host == "::" and not dual_stack:
        host = _ANY_IPV4
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual_stack)
    except UnicodeError as error:
        raise OSError(errno.EADDRNOTAVAIL, "not a host name") from error


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket as ``bind``, but raise ``InputError`` with the reason."""
    try:
        return bind(host, port)
    except OSError as error:
        # The text of ``socket.create_server`` repeats the address.
        in_use = error.errno == errno.EADDRINUSE
        reason = os.strerror(errno.EADDRINUSE) if in_use else error.strerror or str(error)
        free = " (port 0: any free one)" if in_use else ""
        raise InputError(host_port(host, port), f"cannot listen there: {reason}; choose another with --listen{free}") from error


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server on ``host``.

    Of host names only ``localhost`` counts, because any other may resolve to another machine.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_port(host: str, port: int) -> str:
    """Return host and port as in a URL: ``HOST:PORT`` or ``[IPV6]:PORT``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def basic_credentials(authorization: bytes) -> tuple[bytes, bytes] | None:
    """Return user and password of an Authorization header; None if it is not Basic authentication."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user, password) if colon else None


def bearer_token(authorization: bytes) -> bytes | None:
    """Return the token of an Authorization header; None if it is not a bearer token."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def application(handler: Handler) -> Callable[..., Any]:
    """Return an ASGI application that calls ``handler``; request bodies are read and discarded."""

    async def answer(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            # Repeated headers are equivalent to one list (RFC 9110).
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        announced = "content-length" in headers or "transfer-encoding" in headers
        if announced and not await _discard_body(receive):
            response = Response(413, b"the request is too large\n", headers=(("connection", "close"),))
        else:
            path = scope["path"]
            request = HttpRequest(
                method=scope["method"],
                path=(path if path.startswith("/") else _ABSOLUTE.sub("", path)) or "/",
                query=scope["query_string"].decode("latin-1"),
                headers=headers,
                peer=scope["client"][0] if scope["client"] else "",
                tls=scope["scheme"] == "https",
                disconnected=lambda: _disconnected(receive),
            )
            response = await handler(request)
        raw = _raw_headers(response.content_type, len(response.body), response.headers)
        await send({"type": "http.response.start", "status": response.status, "headers": raw})
        await send({"type": "http.response.body", "body": response.body})

    return answer


async def _disconnected(receive: Callable[..., Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _discard_body(receive: Callable[..., Any]) -> bool:
    """Read the body; return False if it exceeds the limit."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            return False
        if not message.get("more_body", False):
            return True


@lru_cache(64)  # responses to scrapers mostly have the same headers
def _raw_headers(content_type: str, body_bytes: int, headers: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    own = (("content-type", content_type), ("content-length", str(body_bytes)), ("x-content-type-options", "nosniff"))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*own, *headers)]
