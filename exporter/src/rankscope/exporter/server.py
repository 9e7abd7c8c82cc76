"""Serving HTTP so that no client can hold the exporter up."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankscope.exporter.errors import ExporterInputError

REQUEST_DEADLINE_S: Final = 10.0
RESPONSE_DEADLINE_S: Final = 30.0
KEEP_ALIVE_S: Final = 75  # longer than the usual scrape intervals, so that Prometheus keeps its connection
_SHUTDOWN_S: Final = 1


class DeadlineProtocol(H11Protocol):
    """An HTTP connection that ends when the client does not.

    The stock protocol waits for ever for the rest of a request, and for a client that does not read its response.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request has to arrive within the deadline."""
        super().connection_made(transport)
        self._close_after(REQUEST_DEADLINE_S)

    def handle_events(self) -> None:
        """A complete request head has to be followed by a response that is read."""
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._close_after(RESPONSE_DEADLINE_S)

    def on_response_complete(self) -> None:
        """The next request may take its time to begin, and then has to arrive."""
        # Before the original: that one may begin with a request which already waits.
        self._close_after(KEEP_ALIVE_S + REQUEST_DEADLINE_S)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to be closed."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _close_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; an IPv6 wildcard serves IPv4 as well.

    Raises:
        ExporterInputError: the address is in use, not this machine's, or not permitted.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=512, dualstack_ipv6=dual)
    except (OSError, UnicodeError) as error:  # the latter for a host that could never be a name
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ExporterInputError(
            f"cannot listen on {host}:{port}: {reason.lower()}; stop what uses it or choose another address with --listen"
        ) from error


def serve(app: Any, sock: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then return."""
    # Scanners send nonsense all day; the log is for the collectors.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        http=DeadlineProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=16 * 1024,
    )
    server = uvicorn.Server(config)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # The server handles signals while it runs and then raises them again for whoever was there before: that is us, who are done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(sockets=[sock])
