"""An HTTP/1.1 server that slow clients cannot block: uvicorn's protocol with a deadline per state and a limit on connections.

It replaces uvicorn's server, which loads one certificate for its lifetime, refuses new clients at the limit instead of evicting
the longest-idle one, and wakes ten times a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from rankscope.base.http import TEXT

logger = logging.getLogger(__name__)

REQUEST_DEADLINE_S: Final = 10.0
"""Seconds from the connection, or from the first byte of a later request, to the end of the request's head."""
RESPONSE_DEADLINE_S: Final = 30.0
"""Seconds from the end of the request's head to the last byte of the response."""
KEEP_ALIVE_S: Final = 75
"""Idle seconds between requests; longer than usual scrape intervals, so that Prometheus keeps its connection."""
MAX_CONNECTIONS: Final = 512
"""Maximum number of connections; also limited to half of the file descriptors that the process may open."""
MAX_HEAD_BYTES: Final = 16 * 1024
GRACE_S: Final = 0.5
"""Seconds to finish active responses when the server stops."""

_ACCEPT_PAUSE_S: Final = 0.1
_EVICT_PAUSE_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class ListenEndpoint:
    """A listening socket and the ASGI application behind it.

    ``tls`` is called for every connection, so that the next handshake uses a new certificate. None: plain HTTP.
    ``admit`` receives the transport and returns False to refuse the client.
    ``evicted`` receives the address of a client whose request was cut off to make room for another client; empty if unknown.
    """

    sock: socket.socket
    app: Callable[..., Any]
    tls: Callable[[], Awaitable[ssl.SSLContext | None]] | None = None
    admit: Callable[[Any], bool] = lambda _transport: True
    evicted: Callable[[str], object] = lambda _address: None


class _DefectFilter(logging.Filter):
    """Log each exception of an application once per location, so that a client that repeats a request does not fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self._defects: set[tuple[str, str, int]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is new or has no exception."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return False
        if error is None or error.__traceback__ is None:
            return True
        frame = error.__traceback__
        while frame.tb_next is not None:
            frame = frame.tb_next
        defect = (type(error).__name__, frame.tb_frame.f_code.co_filename, frame.tb_lineno)
        new = defect not in self._defects
        self._defects.add(defect)
        return new


_protocol_logger = logging.getLogger(f"{__name__}.protocol")
_protocol_logger.setLevel(logging.ERROR)  # uvicorn logs a warning for every request that it cannot parse
_protocol_logger.addFilter(_DefectFilter())


class Connection(H11Protocol):
    """uvicorn's connection with a deadline for each state.

    uvicorn itself waits forever for the rest of a request, and for a client that does not read its response.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        *,
        admit: Callable[[Any], bool],
        on_close: Callable[[Connection], None],
        on_evict: Callable[[str], object],
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.logger = _protocol_logger
        self._admit = admit
        self._on_close = on_close
        self._on_evict = on_evict
        self._between_requests = False
        self._is_connected = False
        self._half_closed = False
        self._ending = False
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.answered = 0
        self.active_at_s = self.loop.time()

    @property
    def busy(self) -> bool:
        """True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._is_connected = True
        if self.client is not None:
            host, port = self.client
            self.client = (host.removeprefix("::ffff:"), port)  # IPv4 through a dual-stack socket
        self._close_after(REQUEST_DEADLINE_S)
        if self._ending or not self._admit(transport):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Process received data; the first byte of a later request starts its deadline."""
        if self._ending and not self.busy:
            return
        self.active_at_s = self.loop.time()
        if self._between_requests:
            self._between_requests = False
            self._close_after(REQUEST_DEADLINE_S)
        super().data_received(data)

    def handle_events(self) -> None:
        """Start the deadline of body and response when a head is complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._between_requests = False
            self._close_after(RESPONSE_DEADLINE_S)

    def on_response_complete(self) -> None:
        """Start the deadline of the next request, by which the client must also have received this response."""
        self.answered += 1
        self.active_at_s = self.loop.time()
        super().on_response_complete()  # may start the next pipelined request
        if self.busy or self.transport.is_closing():
            return
        if self._half_closed or self._ending:
            self.transport.close()
            return
        self._between_requests = not self.conn.trailing_data[0]
        self._close_after(KEEP_ALIVE_S + REQUEST_DEADLINE_S if self._between_requests else REQUEST_DEADLINE_S)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Finish the response to a client that closed its sending side; over TLS, which cannot be half-closed, close at once."""
        self._half_closed = self.busy and not self.cycle.more_body and self.scheme != "https"
        if not self._half_closed:
            self.transport.close()
        return self._half_closed

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel timers and remove the connection from the server."""
        if self._timer is not None:
            self._timer.cancel()
        self._ending = True
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does not after a connection reset
        self._on_close(self)

    def send_400_response(self, msg: str) -> None:
        """Reject a request that cannot be parsed, with the status that h11 suggests, and close."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-type", TEXT), ("content-length", str(len(msg) + 1)), ("connection", "close")]
            events: tuple[Any, ...] = (
                h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
                h11.Data(f"{msg}\n".encode()),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self._ending = True
        self.transport.close()

    def end(self, *, at_once: bool = False) -> None:
        """Close after the active response, or immediately if ``at_once``."""
        self._ending = True
        if not self._is_connected:
            return  # connection_made closes it
        if at_once:
            self.transport.abort()
        elif self.busy:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def evict(self) -> None:
        """Close immediately to make room; an idle client loses nothing by it."""
        if not self._between_requests:
            self._on_evict(self.client[0] if self.client else "")
        self.end(at_once=True)

    def _should_upgrade(self) -> bool:
        return False  # uvicorn would log a warning for every upgrade request

    def _close_after(self, seconds: float) -> None:
        self._deadline_s = self.loop.time() + seconds
        # Most deadlines are extended: keep the timer, which checks the deadline when it fires.
        if self._timer is None or self._timer.when() > self._deadline_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        if self.loop.time() >= self._deadline_s:
            self.transport.abort()
        else:
            self._set_timer()


class Server:
    """Server that accepts connections on all its endpoints in the running event loop."""

    def __init__(self, endpoints: list[ListenEndpoint], *, max_connections: int | None = None) -> None:
        self._endpoints = endpoints
        self._max_connections = max_connections or _affordable_connections()
        self._state = ServerState()
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._acceptors: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to accept connections."""
        self._acceptors = [asyncio.create_task(self._accept(endpoint)) for endpoint in self._endpoints]

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop accepting, and close all connections; active responses have ``grace_s`` seconds to finish."""
        for acceptor in self._acceptors:
            acceptor.cancel()
        for endpoint in self._endpoints:
            endpoint.sock.close()
        for connection in list(self._connections):
            connection.end()
        for _ in range(20):
            if not self._connections:
                return
            await asyncio.sleep(grace_s / 20)
        for connection, opening in list(self._connections.items()):
            opening.cancel()
            connection.end(at_once=True)
        for task in self._state.tasks:
            task.cancel()

    async def _accept(self, endpoint: ListenEndpoint) -> None:
        endpoint.sock.setblocking(False)
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            endpoint.app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # clients could forge their address
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        while True:
            try:
                accepted, _ = await loop.sock_accept(endpoint.sock)
            except OSError as error:
                # The client disconnected, or there is no free file descriptor: an eviction frees one.
                scarce = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
                await asyncio.sleep(_EVICT_PAUSE_S if scarce and self._evict() else _ACCEPT_PAUSE_S)
                continue
            if len(self._connections) >= self._max_connections:
                self._evict()
            connection = Connection(config, self._state, admit=endpoint.admit, on_close=self._forget, on_evict=endpoint.evicted)
            self._connections[connection] = asyncio.create_task(self._open(endpoint, accepted, connection))

    async def _open(self, endpoint: ListenEndpoint, accepted: socket.socket, connection: Connection) -> None:
        """Perform the TLS handshake, with a deadline, and attach the socket to the connection."""
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = None if endpoint.tls is None else await endpoint.tls()
            limits = {"ssl_handshake_timeout": REQUEST_DEADLINE_S, "ssl_shutdown_timeout": GRACE_S} if context else {}
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=context, **limits)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  close the socket after any error
            logger.debug("a connection was not opened: %s", str(error) or type(error).__name__)
            accepted.close()
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def _evict(self) -> bool:
        """Abort the least valuable connection; return False if there is none.

        Idle connections come before busy ones, those without a completed request before others, then the longest idle.
        """
        if not self._connections:
            return False
        victim = min(self._connections, key=lambda connection: (connection.busy, connection.answered > 0, connection.active_at_s))
        self._connections.pop(victim).cancel()
        victim.evict()
        return True


def _affordable_connections() -> int:
    """Return the connection limit: at most half of the file descriptors, because the process needs some for other files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, limit // 2))


def serve_until_signal(
    endpoints: list[ListenEndpoint],
    *,
    grace_s: float,
    started: Callable[[], object] = lambda: None,
    reload: Callable[[], object] | None = None,
) -> None:
    """Serve in the main thread until SIGTERM or SIGINT.

    ``started`` is called once the server accepts connections, ``reload`` in the event loop at SIGHUP; it must not block.
    """

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        if reload is not None:
            loop.add_signal_handler(signal.SIGHUP, reload)
        server = Server(endpoints)
        server.start()
        started()
        await ended.wait()
        await server.stop(grace_s)

    asyncio.run(serve())


def serve_in_thread(endpoints: list[ListenEndpoint], name: str) -> None:
    """Serve in a daemon thread until the process exits."""

    async def serve() -> None:
        server = Server(endpoints)  # kept: the loop itself holds its tasks only weakly
        server.start()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), name=name, daemon=True).start()
