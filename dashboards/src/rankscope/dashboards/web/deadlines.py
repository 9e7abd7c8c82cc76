"""Time limits of clients: for the head of a request, for its body, and between two parts of the answer that they take.

Gunicorn has none, so some half-sent requests would hold all of its threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HEAD_S: Final = 10.0
"""Seconds from the connection, or from the first byte of a later request, to the end of the request's head."""
BODY_S: Final = 30.0
"""Seconds from the end of the head to the end of the body."""
ANSWER_S: Final = 30.0
"""Seconds in which a client must take some of the answer."""
CROWDED_S: Final = 1.0
"""Seconds of each of these limits while clients hold all threads."""
MAX_BODY_BYTES: Final = 4 << 20
_LOOK_EVERY_S: Final = 0.25
_ACKNOWLEDGED_AT: Final = 120
"""Offset of ``tcpi_bytes_acked`` in Linux' ``struct tcp_info``."""


@dataclass(slots=True)
class _Wait:
    """What a thread waits for: a client since ``since_s``, for ``limit_s`` at most; ``None``: for no client."""

    limit_s: float | None
    since_s: float
    taken_bytes: int | None = None
    """Bytes that the client had acknowledged at the last look; ``None`` before the answer."""


class Deadlines:
    """Shuts down connections of ``threads`` threads whose clients stall; the thread's read or write then ends at once."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._waits: dict[socket.socket, _Wait] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start to look after the connections, in the process that serves them."""
        threading.Thread(target=self._run, name="deadlines", daemon=True).start()

    @contextlib.contextmanager
    def connection(self, sock: socket.socket) -> Iterator[None]:
        """Limit the time of a request's head, until it is read, and whatever is waited for afterwards."""
        self._wait(sock, HEAD_S)
        try:
            yield
        finally:
            with self._lock:
                self._waits.pop(sock, None)

    def read_body(self, sock: socket.socket, body: Any) -> bytes:
        """Read the body of a request, or as much as shows that it is too long."""
        self._wait(sock, BODY_S)
        try:
            data: bytes = body.read(MAX_BODY_BYTES + 1)
        finally:
            self._wait(sock, None)
        return data

    def send_answer(self, sock: socket.socket) -> None:
        """Limit the time from now on in which the client takes nothing of the answer."""
        self._wait(sock, ANSWER_S, taken_bytes=0)

    def _wait(self, sock: socket.socket, limit_s: float | None, *, taken_bytes: int | None = None) -> None:
        with self._lock:
            self._waits[sock] = _Wait(limit_s, time.monotonic(), taken_bytes)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Shut down the connections whose time is over."""
        with self._lock:  # a connection ends only after its entry, so no socket is shut down that is another one's
            now_s = time.monotonic()
            crowded = len(self._waits) >= self._threads
            for sock, wait in self._waits.items():
                if wait.limit_s is None or _goes_on(sock, wait, now_s):
                    continue
                if now_s - wait.since_s >= (min(CROWDED_S, wait.limit_s) if crowded else wait.limit_s):
                    with contextlib.suppress(OSError):  # the client was faster
                        sock.shutdown(socket.SHUT_RDWR)


def _goes_on(sock: socket.socket, wait: _Wait, now_s: float) -> bool:
    """Return whether the client has taken some of its answer since the last look, or all that was sent."""
    if wait.taken_bytes is None:
        return False
    try:
        (waiting,) = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
        (acknowledged,) = struct.unpack_from("Q", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128), _ACKNOWLEDGED_AT)
    except (OSError, AttributeError, struct.error):
        return True  # no Linux: the limits of requests must do
    if waiting and acknowledged == wait.taken_bytes:
        return False
    wait.taken_bytes, wait.since_s = acknowledged, now_s
    return True


class Worker(ThreadWorker):  # type: ignore[misc]
    """Gunicorn's worker of threads with deadlines."""

    deadlines: Deadlines

    def init_process(self) -> None:
        """Start the deadlines in the process of the worker."""
        self.deadlines.start()
        super().init_process()

    def handle(self, conn: Any) -> Any:
        """Answer a request of a connection, as long as its client does not stall."""
        with self.deadlines.connection(conn.sock):
            return super().handle(conn)


def worker_class(deadlines: Deadlines) -> type[Worker]:
    """Return the class of workers with ``deadlines``; gunicorn makes the worker itself."""
    return type("DashboardWorker", (Worker,), {"deadlines": deadlines})


def with_whole_bodies(app: WSGIApplication, deadlines: Deadlines) -> WSGIApplication:
    """Return ``app`` that is called once the body of a request is there; a body that is too long or cut is refused."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        sock: socket.socket = environ["gunicorn.socket"]
        body = deadlines.read_body(sock, environ["wsgi.input"])
        length = environ.get("CONTENT_LENGTH") or "0"
        if len(body) > MAX_BODY_BYTES:
            return _refusal(start_response, "413 Content Too Large")
        if length.isdecimal() and len(body) < int(length):
            return _refusal(start_response, "400 Bad Request")
        environ["wsgi.input"] = io.BytesIO(body)
        result = app(environ, start_response)
        deadlines.send_answer(sock)
        return result

    return answer


def _refusal(start_response: StartResponse, status: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain")])
    return [f"{status}\n".encode()]
