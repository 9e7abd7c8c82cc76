"""Serving HTTP so that no client can hold the exporter up: who connects is counted, hurried, and let go for the next."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rankscope.exporter.web.http_connection import REQUEST_DEADLINE_S, Handler, HttpConnection

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 512
"""At most; and at most half of the descriptors that this process may have."""

_SHUTDOWN_S: Final = 0.5
_ACCEPT_PAUSE_S: Final = 0.1
_END_PAUSE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listening socket and who answers there.

    ``tls`` is asked for every connection, so that a new certificate serves the next handshake; None for plain HTTP. ``admit`` may
    refuse a client by its transport.
    """

    sock: socket.socket
    handler: Handler
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    admit: Callable[[Any], bool] = lambda _transport: True


class Server:
    """Accepts on all its endpoints until it is told to stop."""

    def __init__(self, endpoints: list[Endpoint], *, max_connections: int | None = None) -> None:
        self._endpoints = endpoints
        self._max_connections = max_connections or _affordable_connections()
        self._connections: dict[HttpConnection, asyncio.Task[None]] = {}
        self._acceptors: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to accept, in the running loop."""
        self._acceptors = [asyncio.create_task(self._accept(endpoint)) for endpoint in self._endpoints]

    async def stop(self) -> None:
        """Accept nobody any more; responses under way have a moment to end."""
        for acceptor in self._acceptors:
            acceptor.cancel()
        for endpoint in self._endpoints:
            endpoint.sock.close()
        for connection in list(self._connections):
            connection.end()
        for _ in range(10):
            if not self._connections:
                return
            await asyncio.sleep(_SHUTDOWN_S / 10)
        for connection, opening in list(self._connections.items()):
            opening.cancel()
            connection.end(at_once=True)

    async def _accept(self, endpoint: Endpoint) -> None:
        endpoint.sock.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(endpoint.sock)
            except OSError as error:
                # A client that has gone again, or no descriptors left: the latter passes when somebody is let go.
                scarce = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
                await asyncio.sleep(_END_PAUSE_S if scarce and self._let_one_go() else _ACCEPT_PAUSE_S)
                continue
            if len(self._connections) >= self._max_connections:
                self._let_one_go()
            connection = HttpConnection(endpoint.handler, admit=endpoint.admit, on_close=self._forget)
            self._connections[connection] = asyncio.create_task(self._open(endpoint, accepted, connection))

    async def _open(self, endpoint: Endpoint, accepted: socket.socket, connection: HttpConnection) -> None:
        """Hand the socket to the connection, after the TLS handshake, which has a deadline as everything has."""
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = endpoint.tls()
            limits = {"ssl_handshake_timeout": REQUEST_DEADLINE_S, "ssl_shutdown_timeout": _SHUTDOWN_S} if context else {}
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=context, **limits)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            # Whatever it is: nobody waits for an answer that does not come, and its descriptor and its place are free again.
            logger.debug("a connection was not opened: %s", str(error) or type(error).__name__)
            accepted.close()
            self._forget(connection)

    def _forget(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def _let_one_go(self) -> bool:
        """The connection that is worth least: one that never asked anything before one that did, the longest silent first.

        False when there is none.
        """
        if not self._connections:
            return False
        least = min(self._connections, key=lambda one: (one.busy, one.answered > 0, one.active_at))
        self._connections.pop(least).cancel()
        least.end(at_once=True)
        return True


def _affordable_connections() -> int:
    """The GPUs' processes, the spool and the journal need descriptors as well."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, limit // 2))
