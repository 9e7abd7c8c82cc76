"""Time limits of clients that send or read slowly."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rankscope.dashboards.web import deadlines
from rankscope.dashboards.web.deadlines import MAX_BODY_BYTES, Deadlines

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
def test_half_sent_requests_do_not_keep_others_waiting() -> None:
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
def test_a_client_that_stalls_is_cut_off() -> None:
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


def test_who_takes_some_of_the_answer_keeps_the_connection(
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


def test_while_threads_are_free_a_client_has_time(
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
