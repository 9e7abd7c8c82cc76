"""Answers of the server: compressed, cached, few at a time, and within time limits for slow clients."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flask.testing import FlaskClient

from rankscope.dashboards.app import create_app
from rankscope.dashboards.web import compression, deadlines
from rankscope.dashboards.web.deadlines import MAX_BODY_BYTES, Deadlines
from rankscope.dashboards.web.server import answering

SERVER = """
import socket, sys, dash, flask
from rankscope.dashboards.web import deadlines, server
deadlines.HEAD_S, deadlines.BODY_S, deadlines.ANSWER_S, deadlines.CROWDED_S = map(float, sys.argv[1:])
app, sock = dash.Dash(), socket.create_server(("127.0.0.1", 0))
app.layout = dash.html.Div()
app.server.add_url_rule("/-/healthy", "healthy", view_func=lambda: "ok")
app.server.add_url_rule("/length", "length", view_func=lambda: str(len(flask.request.get_data())), methods=["POST"])
app.server.add_url_rule("/long", "long", view_func=lambda: 50_000_000 * "x")
server.serve(app, sock, ready=lambda: print(sock.getsockname()[1], flush=True))
"""
HALF = {
    "head": b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n",
    "body": b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
}


@contextlib.contextmanager
def serving(*limits_s: float) -> Iterator[int]:
    """Serve a small app; yield its port."""
    command = [sys.executable, "-c", SERVER, *map(str, limits_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()
            assert "Traceback" not in process.stderr.read()


def answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        client.sendall(request)
        data = b""
        while part := client.recv(1 << 16):
            data += part
        return data


@pytest.mark.slow
def test_incomplete_requests_do_not_block_other_clients() -> None:
    healthy = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    post = b"POST /length HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with serving(600, 600, 600, 0.2) as port, contextlib.ExitStack() as stalled:
        # given more half-sent requests than the server has threads
        clients = [stalled.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(70)]
        for number, client in enumerate(clients):
            client.sendall(HALF["head" if number % 2 else "body"])
        # then others are answered all the same
        assert answer(port, healthy).endswith(b"ok")
        assert answer(port, post % 100_000 + 100_000 * b"x").endswith(b"100000")
        assert answer(port, post % (MAX_BODY_BYTES + 1) + (MAX_BODY_BYTES + 1) * b"x").startswith(b"HTTP/1.1 413")


@pytest.mark.full
@pytest.mark.slow
def test_stalled_client_is_disconnected() -> None:
    with serving(0.5, 0.5, 0.5, 0.5) as port, contextlib.ExitStack() as stalled:
        clients = [stalled.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120)) for _ in range(3)]
        for client, request in zip(
            clients, (HALF["head"], HALF["body"], b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n"), strict=True
        ):
            client.sendall(request)
        time.sleep(2)
        received = [b"".join(iter(lambda client=client: client.recv(1 << 16), b"")) for client in clients]  # type: ignore[misc]
        assert received[0] == b""
        assert b"200 OK" not in received[1]
        assert 0 < len(received[2]) < 50_000_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        yield server, client


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1 << 24) != b""
    except BlockingIOError:
        return True


def fill(server: socket.socket) -> None:
    """Send until nothing more fits."""
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            server.send((1 << 20) * b"x")


def test_client_that_keeps_reading_keeps_the_connection(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = pair
    limits, now_s = Deadlines(2), 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with limits.connection(server):
        limits.send_answer(server)
        for _ in range(5):  # more than the limit in all
            fill(server)
            now_s += deadlines.ANSWER_S - 1
            limits.look()
            assert is_open(client)
        # when it takes nothing more
        fill(server)
        limits.look()
        now_s += deadlines.ANSWER_S + 1
        limits.look()
        with pytest.raises(BrokenPipeError):
            server.send(b"x")


def test_deadline_is_shorter_only_when_threads_are_scarce(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = pair
    limits, now_s = Deadlines(2), 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with limits.connection(server), socket.socket() as other:
        now_s = deadlines.CROWDED_S + 1
        limits.look()
        assert is_open(client)
        with limits.connection(other):
            limits.look()
            assert not is_open(client)


if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

GZIP = {"Accept-Encoding": "gzip, deflate"}


@pytest.fixture
def http(memory_runs: Any) -> FlaskClient:
    """Client of the app."""
    client: FlaskClient = create_app(memory_runs).server.test_client()
    return client


def test_scripts_and_styles_are_compressed_and_cached(http: FlaskClient) -> None:
    addresses = re.findall(r'(?:src|href|data-plotly)="(/[^"]+\.(?:js|css)[^"]*)"', http.get("/run/run-1").text)
    assert any("plotly" in address for address in addresses)
    assert any("early.js" in address for address in addresses)
    for address in addresses:
        with http.get(address) as plain, http.get(address, headers=GZIP) as packed:
            assert "immutable" in packed.headers["Cache-Control"], address
            if len(plain.data) > 2_000:
                assert packed.headers["Content-Encoding"] == "gzip", address
                assert len(packed.data) < len(plain.data) / 1.5, address


def test_table_library_is_not_loaded_as_a_script_of_the_page(http: FlaskClient) -> None:
    page = http.get("/run/run-1").text
    assert re.findall(r'<link id="library-dash_ag_grid"[^>]* href="/_dash-component-suites/dash_ag_grid/[^"]+\.js">', page)
    assert not re.search(r"<script[^>]*ag_grid", page)


def test_unversioned_script_is_revalidated(http: FlaskClient) -> None:
    address = "/_dash-component-suites/dash/dcc/async-graph.js"
    first = http.get(address, headers=GZIP)
    assert "immutable" not in first.headers.get("Cache-Control", "")
    again = http.get(address, headers={**GZIP, "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_compressed_responses_of_different_paths_are_not_mixed_up(http: FlaskClient) -> None:
    answers = [http.get(path, headers=GZIP) for path in ("/_dash-layout", "/_dash-dependencies")]
    assert [answer.headers["Content-Encoding"] for answer in answers] == ["gzip", "gzip"]
    assert answers[0].data != answers[1].data


def test_script_is_compressed_once(http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "/_dash-component-suites/dash/dcc/async-graph.js"
    first = http.get(address, headers=GZIP).data
    monkeypatch.setattr("gzip.compress", lambda *_: pytest.fail("compressed again"))
    assert http.get(address, headers=GZIP).data == first


def test_forged_script_versions_do_not_fill_the_memory() -> None:
    kept = compression._CompressedCache()
    for number in range(10_000):
        kept.set(f"gzip;/_dash-component-suites/dash/a.v{number}m1.js", b"")
    assert len(kept._cache) < 100


def test_health_check_does_not_wait_for_busy_workers() -> None:
    may_answer, begun = threading.Event(), threading.Semaphore(0)

    def slow(environ: WSGIEnvironment, _start: StartResponse) -> list[bytes]:
        if environ["PATH_INFO"] != "/-/healthy":
            begun.release()
            assert may_answer.wait(60)
        return [environ["PATH_INFO"].encode()]

    app = answering(slow, 2)
    with ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(app, {"PATH_INFO": "/page"}, lambda *_: None) for _ in range(4)]  # type: ignore[arg-type]
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        assert app({"PATH_INFO": "/-/healthy"}, lambda *_: None) == [b"/-/healthy"]  # type: ignore[arg-type]
        assert not begun.acquire(blocking=False), "two at a time"
        may_answer.set()
        assert [request.result() for request in requests] == 4 * [[b"/page"]]
