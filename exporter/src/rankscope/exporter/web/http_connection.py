"""One HTTP/1 connection that ends when its client does not.

A small server of our own on h11: every state of a connection has a deadline, and a client that does not read costs one page.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import h11

logger = logging.getLogger(__name__)

REQUEST_DEADLINE_S: Final = 10.0
RESPONSE_DEADLINE_S: Final = 30.0
KEEP_ALIVE_S: Final = 75.0  # longer than the usual scrape intervals, so that Prometheus keeps its connection
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_BODY_BYTES: Final = 16 * 1024
_ABSOLUTE: Final = re.compile("https?://[^/?]*", re.IGNORECASE)  # the form in which a proxy is asked, valid for all (RFC 9112)
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request. ``headers`` have lower-case names; ``peer`` is the client's address, empty on a Unix socket."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    peer: str
    tls: bool


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent; the length and, for HEAD, the absence of the body are seen to."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = field(default=())


_defects: Final[set[tuple[str, str, int]]] = set()

Handler = Callable[[Request], Awaitable[Response]]


class HttpConnection(asyncio.Protocol):
    """Reads requests one after the other, has ``handler`` answer them, and keeps the deadlines.

    ``admit`` looks at the transport once and says whether this client may speak at all. ``on_close`` is called once.
    """

    def __init__(self, handler: Handler, *, admit: Callable[[Any], bool], on_close: Callable[[HttpConnection], None]) -> None:
        self._handler = handler
        self._admit = admit
        self._on_close = on_close
        self._http = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._body_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._writing = False
        self._ending = False
        self.answered = 0
        self.active_at = time.monotonic()

    @property
    def busy(self) -> bool:
        """A request is being answered."""
        return self._task is not None or self._writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first request has to arrive within the deadline."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Every byte the client has not taken counts, so that "written" means "taken by the kernel".
        transport.set_write_buffer_limits(high=1, low=0)
        self._close_after(REQUEST_DEADLINE_S)
        if self._ending or not self._admit(transport):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """More of a request, or more requests."""
        assert self._transport is not None
        self.active_at = time.monotonic()
        if self._ending:
            return
        if self.busy:
            # One client is not read ahead of: its next requests stay in the kernel's buffers.
            self._transport.pause_reading()
        elif self._request is None and self._http.their_state is h11.IDLE and not self._http.trailing_data[0]:
            self._close_after(REQUEST_DEADLINE_S)
        self._http.receive_data(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client will say no more; what it asked is still answered, where the transport can."""
        assert self._transport is not None
        if self._ending:
            return False
        self._http.receive_data(b"")
        self._advance()
        return self.busy and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, _exc: Exception | None) -> None:
        """Nothing is left to be closed or answered."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._ending = True
        self._on_close(self)

    def pause_writing(self) -> None:
        """The client is slower than the response."""
        self._writing = True

    def resume_writing(self) -> None:
        """The client has everything: the whole response, or what the TLS handshake left over."""
        assert self._transport is not None
        self._writing = False
        if self._task is not None:
            return
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._ending:
            self._transport.resume_reading()
            self._advance()
        else:
            self._next()

    def end(self, *, at_once: bool = False) -> None:
        """Close, after the response that is under way unless ``at_once``."""
        if self._transport is None:
            self._ending = True
        elif at_once:
            self._ending = True
            self._transport.abort()
        elif not self.busy:
            self._finish()
        else:
            self._ending = True

    def _advance(self) -> None:
        """Take events until a request is complete, or more data is needed."""
        while not self.busy and not self._ending:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, "not a request that can be answered\n")
                return
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
                return
            if event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._request, self._body_bytes = event, 0
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > MAX_BODY_BYTES:
                    self._refuse(413, "the request is too large\n")
                    return
            elif isinstance(event, h11.EndOfMessage):
                self._close_after(RESPONSE_DEADLINE_S)
                self._task = self._loop.create_task(self._answer())
            else:
                assert isinstance(event, h11.ConnectionClosed)
                self._finish()

    async def _answer(self) -> None:
        raw = self._request
        assert raw is not None
        try:
            response = await self._handler(self._readable(raw))
        except Exception as error:  # noqa: BLE001  a defect behind one page must not cost the others
            _log_once(error)
            response = Response(500, b"internal error; see the log of the exporter\n")
        self._task = self._request = None
        self.answered += 1
        self.active_at = time.monotonic()
        try:
            self._respond(response, head=raw.method == b"HEAD")
        except Exception as error:  # noqa: BLE001  what cannot be sent must not leave the client waiting
            _log_once(error)
            self.end(at_once=True)
            return
        if not self._writing:
            self._next()

    def _readable(self, raw: h11.Request) -> Request:
        assert self._transport is not None
        target = raw.target.decode("latin-1")
        if not target.startswith("/"):
            target = _ABSOLUTE.sub("", target)
        path, _, query = target.partition("?")
        headers: dict[str, str] = {}
        for raw_name, raw_value in raw.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            # Repeated headers mean the same as one list (RFC 9110).
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        peer = self._transport.get_extra_info("peername")
        return Request(
            method=raw.method.decode("latin-1"),
            path=path or "/",
            query=query,
            headers=headers,
            peer=peer[0] if isinstance(peer, tuple) else "",
            tls=self._transport.get_extra_info("ssl_object") is not None,
        )

    def _respond(self, response: Response, *, head: bool = False, close: bool = False) -> None:
        headers = (*response.headers, ("connection", "close")) if close or self._ending else response.headers
        pieces = [self._http.send(_head(response.status, response.content_type, len(response.body), headers))]
        if not head:
            pieces.append(self._http.send(h11.Data(response.body)))
        pieces.append(self._http.send(h11.EndOfMessage()))
        self._write(b"".join(piece for piece in pieces if piece))

    def _write(self, data: bytes | None) -> None:
        assert self._transport is not None
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _next(self) -> None:
        """After a response: the next request, which may be here already, or the end."""
        if self._ending or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._finish()
            return
        assert self._transport is not None
        self._http.start_next_cycle()
        self._close_after(KEEP_ALIVE_S)
        self._transport.resume_reading()
        self._advance()

    def _refuse(self, status: int, text: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._respond(Response(status, text.encode()), close=True)
        self._finish()

    def _finish(self) -> None:
        """Send what is written and close; a client that does not take it has until the deadline."""
        self._ending = True
        if self._transport is not None and not self._transport.is_closing():
            self._close_after(REQUEST_DEADLINE_S)
            self._transport.close()

    def _close_after(self, seconds: float) -> None:
        self._deadline_s = self._loop.time() + seconds
        # Deadlines mostly move away: the timer that is set looks again when it is time.
        if self._timer is None or self._timer.when() > self._deadline_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        assert self._transport is not None
        if self._loop.time() >= self._deadline_s:
            self._transport.abort()
        else:
            self._set_timer()


@lru_cache(64)  # all of twenty scrapers get the same
def _head(status: int, content_type: str, body_bytes: int, headers: tuple[tuple[str, str], ...]) -> h11.Response:
    own = (("content-type", content_type), ("content-length", str(body_bytes)), ("x-content-type-options", "nosniff"))
    return h11.Response(status_code=status, headers=[*own, *headers], reason=HTTPStatus(status).phrase.encode())


def _log_once(error: Exception) -> None:
    """A defect, with its place; whoever runs into it again and again does not fill the log."""
    place = traceback.extract_tb(error.__traceback__, -1)[-1]
    defect = (type(error).__name__, place.filename, place.lineno or 0)
    if defect not in _defects:
        _defects.add(defect)
        logger.error("a request could not be answered", exc_info=error)
