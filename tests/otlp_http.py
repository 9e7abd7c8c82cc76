"""OTLP servers like a collector, over HTTP and gRPC, which decode requests with the official messages."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import pytest
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


@contextmanager
def receiving_grpc(
    add_to_server: Callable[[Any, grpc.Server], None], export: Callable[[Any, Any], Message], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Answer calls of ``Export`` with those of ``export`` (request and context); senders of this process find the server."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_to_server(SimpleNamespace(Export=export), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    try:
        yield
    finally:
        server.stop(None).wait()
