"""Local HTTP server whose answers a test defines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[str]:
    """Yield its address. ``answer`` gets each request, GET or POST, and its body; disconnected clients are ignored."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with suppress(OSError):
                answer(self, body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def respond(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    """Send a complete response; ``Content_Type`` is the header ``Content-Type``."""
    request.send_response(status)
    for name, value in ({"Content_Length": str(len(body))} | headers).items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)
