"""HTTP over real connections: valid requests, and clients that stall, open many connections or send nonsense."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.conftest import RunningExporter
from tests.exporter.web.conftest import Simulated

pytestmark = pytest.mark.slow  # each starts real processes

HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT_DEADLINES = (
    "import rankscope.base.http_server as http; http.REQUEST_DEADLINE_S = http.RESPONSE_DEADLINE_S = http.KEEP_ALIVE_S = 1"
)


def connect(exporter: RunningExporter) -> socket.socket:
    return socket.create_connection((exporter.host, exporter.port), timeout=120)


def test_nonsense_on_the_line_gets_a_400_and_harms_no_other(simulated: Simulated) -> None:
    with connect(simulated.exporter) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")

    assert simulated.exporter.get("/-/healthy").status == 200


def ask(exporter: RunningExporter, sent: bytes) -> bytes:
    """Send bytes and return everything received until the server closes."""
    answer = b""
    with socket.create_connection((exporter.host, exporter.port), timeout=120) as connection:
        connection.sendall(sent)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def test_http_as_it_is_spoken(simulated: Simulated) -> None:
    exporter = simulated.exporter
    last = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    assert ask(exporter, b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nhealthy\n")
    assert ask(exporter, HEALTHY * 20 + last).count(b"\r\n\r\nhealthy\n") == 21
    assert ask(exporter, b"GET http://x/-/healthy?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    assert ask(exporter, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + last).count(b"# HELP") == 0
    # a body with a length, chunked, with Expect: 100-continue, or too large
    assert ask(exporter, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" + last).startswith(b"HTTP/1.1 405")
    expecting = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with socket.create_connection((exporter.host, exporter.port), timeout=120) as connection:
        connection.sendall(expecting)
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"body")
        assert connection.recv(100).startswith(b"HTTP/1.1 405")
    assert ask(exporter, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"x" * 20000).startswith(
        b"HTTP/1.1 413"
    )
    assert ask(exporter, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20000).startswith(b"HTTP/1.1 431")
    # a client that closed its sending side still gets the answer
    with socket.create_connection((exporter.host, exporter.port), timeout=120) as connection:
        connection.sendall(HEALTHY)
        connection.shutdown(socket.SHUT_WR)
        assert connection.makefile("rb").read().endswith(b"healthy\n")


@pytest.mark.full
def test_few_descriptors_are_shared_out(start_exporter: Callable[..., RunningExporter]) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))"
    exporter = start_exporter("--simulate", "1", prelude=limit)
    limits = Path(f"/proc/{exporter.process.pid}/limits").read_text()
    assert re.search(r"Max open files +128 +128", limits)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((exporter.host, exporter.port), timeout=120))

        assert exporter.values("gpu_up") == [1.0]
        sockets = [path for path in Path(f"/proc/{exporter.process.pid}/fd").iterdir() if "socket" in _target(path)]
        assert len(sockets) <= 64 + 6  # including the exporter's own sockets


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
