"""Serving the receiver so that no client can hold it up, and a clean end."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rankscope.alerts.receive.app import ReceiverApp
from rankscope.base.errors import InputError

_OUT_OF_DATE: Final = {9: "not valid yet", 10: "expired"}
"""OpenSSL's codes of what is wrong with the dates of a certificate."""
_FLIGHTS: Final = 3
"""Each side says so often something until the client has verified what it was shown."""


def out_of_date(server: ssl.SSLContext, file: Path) -> str:
    """What is wrong with the dates of the certificate in ``file``, which ``server`` shows; empty: nothing.

    The standard library reads no dates of a file, so a client that trusts this certificate alone is made to verify it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(file)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for _ in range(_FLIGHTS):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return _OUT_OF_DATE.get(error.verify_code, "")
            except ssl.SSLError:  # they may not agree on how to speak: nothing is known
                return ""
    return ""


REQUEST_DEADLINE_S: Final = 10.0
RESPONSE_DEADLINE_S: Final = 30.0
"""Longer than the receiver itself waits for a body, so that the sender gets an answer."""
KEEP_ALIVE_S: Final = 5
STOP_S: Final = 2
"""Requests still running after a signal get this long."""
MOST_CONNECTIONS: Final = 64


class DeadlineProtocol(H11Protocol):
    """An HTTP connection that ends when the client does not.

    The stock protocol waits for ever for the rest of a request, and for a client that does not read its response; as connections
    are counted, a few such clients would keep everybody out. The exporter has the same few lines: it imports nobody, and is
    imported for its catalogue only.
    """

    ending: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the server is about to end: whoever comes then would be waited for."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request has to arrive within the deadline."""
        super().connection_made(transport)
        self._close_after(0.0 if self.ending() else REQUEST_DEADLINE_S)

    def handle_events(self) -> None:
        """A complete request head has to be followed by its body, and by a response that is read."""
        if len(self.connections) > MOST_CONNECTIONS:
            # The server's own limit would not say when to come again.
            self.app = _full
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


async def _full(_scope: object, _receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
    """Answer one request of a connection too many, and end that."""
    body = b"busy: too many connections; try again\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"retry-after", b"%d" % KEEP_ALIVE_S),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(
    app: ReceiverApp,
    sock: socket.socket,
    *,
    certificate: tuple[Path, Path] | None = None,
    report: Callable[[str], object] = lambda _: None,
    begins: Callable[[], object] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT; with TLS where files of a certificate and its key are given.

    ``begins`` is called when nothing can go wrong any more; ``report`` takes what senders would find wrong with the certificate.
    Raises ``InputError`` for files that are no such pair.
    """

    class Protocol(DeadlineProtocol):
        ending = staticmethod(lambda: server.should_exit)

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who says to be sending for another may say anything
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=None if certificate is None else certificate[0],
        ssl_keyfile=None if certificate is None else certificate[1],
    )
    try:
        config.load()
    except OSError as error:  # of ssl's, too
        raise InputError(
            ", ".join(map(str, certificate or ())), f"no certificate with its key: {error.strerror or error}"
        ) from error
    if certificate is not None and config.ssl is not None and (wrong := out_of_date(config.ssl, certificate[0])):
        report(f"{certificate[0]}: this certificate is {wrong}: senders that verify it, as Alertmanager does, send nothing")
    server = uvicorn.Server(config)
    begins()
    # uvicorn raises a signal again after it has shut down; the end was clean, so that second one is ours to swallow.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run(sockets=[sock])
