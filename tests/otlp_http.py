"""OTLP/HTTP server like a collector, which decodes requests with the official messages."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


@contextmanager
def receiving(request: type[M], answer: Message, receive: Callable[[dict[str, str], M], None], port: int = 0) -> Iterator[int]:
    """Pass the headers (and ``path``) and the message of each request to ``receive``; yield the port on 127.0.0.1."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receive(
                {"path": self.path, **{name.lower(): value for name, value in self.headers.items()}}, request.FromString(body)
            )
            reply = answer.SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
