"""HTTP server of exporter, receiver and watcher, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
from tests.waiting import wait_in_loop

from rankscope.base import http_server
from rankscope.base.http import Handler, HttpRequest, Response, application
from rankscope.base.http_server import ListenEndpoint, Server

HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
HALF_A_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "
PATIENCE_S = 120


async def healthy(_request: HttpRequest) -> Response:
    return Response(200, b"healthy\n")


@contextlib.asynccontextmanager
async def serving(
    handler: Handler = healthy, *, max_connections: int | None = None, evicted: Callable[[str], object] = lambda _: None
) -> AsyncIterator[tuple[Server, int]]:
    """Run a server, yielding it and its port; a test may stop it early."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = Server([ListenEndpoint(sock, application(handler), evicted=evicted)], max_connections=max_connections)
    port = sock.getsockname()[1]
    server.start()
    try:
        yield server, port
    finally:
        await server.stop()


async def ask(port: int, sent: bytes = HEALTHY) -> bytes:
    """Return the first line of the response; empty if the server closes without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    line = b""
    with contextlib.suppress(ConnectionError):
        line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return line


async def ended(reader: asyncio.StreamReader) -> None:
    """Return when the server has closed the connection."""
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))


def test_longest_idle_slow_client_is_evicted_first() -> None:
    async def main() -> None:
        async with serving(max_connections=8) as (_, port):
            kept_reader, kept_writer = await asyncio.open_connection("127.0.0.1", port)
            kept_writer.write(HEALTHY)
            assert (await kept_reader.readuntil(b"healthy\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            slow = []
            for _ in range(200):
                slow.append(await asyncio.open_connection("127.0.0.1", port))
                slow[-1][1].write(HALF_A_REQUEST)
                await asyncio.sleep(0)

            assert await ask(port) == b"HTTP/1.1 200 OK\r\n"
            # a client that was answered before keeps its connection; the first of the others lost theirs
            kept_writer.write(HEALTHY)
            assert (await kept_reader.readuntil(b"healthy\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            for reader, _ in slow[:190]:
                await ended(reader)
            for _, writer in slow:
                writer.close()
            kept_writer.close()

    run(main)


def test_only_evictions_of_waiting_clients_are_reported() -> None:
    evicted: list[str] = []

    async def main() -> None:
        async with serving(max_connections=4, evicted=evicted.append) as (_, port):
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for reader, writer in idle:
                writer.write(HEALTHY)
                await reader.readuntil(b"healthy\n")
            # The next client replaces the longest idle one; half of a request does not protect it from the client after it.
            waiting = await asyncio.open_connection("127.0.0.1", port)
            waiting[1].write(HALF_A_REQUEST)
            await ended(idle[0][0])
            assert evicted == []
            assert await ask(port) == b"HTTP/1.1 200 OK\r\n"
            assert evicted == ["127.0.0.1"]
            for _, writer in (*idle, waiting):
                writer.close()

    run(main)


@pytest.mark.parametrize(
    ("sent", "deadline"),
    [
        pytest.param(b"", "REQUEST_DEADLINE_S", id="nothing"),
        pytest.param(HALF_A_REQUEST, "REQUEST_DEADLINE_S", id="half a head"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nsome", "RESPONSE_DEADLINE_S", id="half a body"),
        pytest.param(HEALTHY, "KEEP_ALIVE_S", id="no second request"),
        pytest.param(HEALTHY + HALF_A_REQUEST, "REQUEST_DEADLINE_S", id="half a second head"),
    ],
)
def test_every_connection_state_has_a_deadline(sent: bytes, deadline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("REQUEST_DEADLINE_S", "RESPONSE_DEADLINE_S", "KEEP_ALIVE_S"):
        monkeypatch.setattr(http_server, other, 1000)
    monkeypatch.setattr(http_server, deadline, 0.1)

    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await ended(reader)
            writer.close()

    run(main)


def test_unread_response_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    for deadline in ("REQUEST_DEADLINE_S", "RESPONSE_DEADLINE_S", "KEEP_ALIVE_S"):
        monkeypatch.setattr(http_server, deadline, 0.1)

    async def large(_request: HttpRequest) -> Response:
        return Response(200, bytes(2**25))

    async def main() -> None:
        async with serving(large) as (server, port):
            for close in (b"", b"Connection: close\r\n"):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + close + b"\r\n")
                    # The kernel keeps the unread data: only the server knows that it gave up.
                    await wait_in_loop(lambda: server._connections)
                    await wait_in_loop(lambda: not server._connections)

    run(main)


GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def test_every_request_of_a_connection_reaches_the_handler() -> None:
    handled: list[str] = []

    async def count(request: HttpRequest) -> Response:
        handled.append(request.path)
        return Response(200, b"handled\n")

    async def main() -> None:
        async with serving(count) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for pieces in ([GET], [GET], [GET.replace(b"/a", b"/b")], [GET + GET], [GET[:9], GET[9:]]):
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.01)
                for _ in range(b"".join(pieces).count(b"GET ")):
                    await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhandled\n"), PATIENCE_S)
            writer.close()

    run(main)
    assert handled == ["/a", "/a", "/b", "/a", "/a", "/a"]


def test_idle_connection_is_closed_after_the_keep_alive_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 0.5)

    async def main() -> None:
        async with serving(healthy) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(GET)
                await asyncio.wait_for(reader.readuntil(b"healthy\n"), PATIENCE_S)
            await ended(reader)
            writer.close()

    run(main)


@pytest.mark.slow
def test_shutdown_waits_for_a_response_in_flight() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_request: HttpRequest) -> Response:
        begun.set()
        await may_end.wait()
        return Response(200, b"x" * 2**20)

    async def main() -> None:
        async with serving(slow) as (server, port):
            idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTHY)
            await begun.wait()
            stopping = asyncio.create_task(server.stop(PATIENCE_S))
            await ended(idle_reader)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            may_end.set()
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert len(answer.partition(b"\r\n\r\n")[2]) == 2**20
            await stopping
            for item in (idle_writer, writer):
                item.close()

    run(main)


def test_endless_response_does_not_block_shutdown() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_request: HttpRequest) -> Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async def main() -> None:
        async with serving(endless) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTHY)
            await begun.wait()
            await server.stop(0.01)
            await ended(reader)
            await cancelled.wait()
            writer.close()

    run(main)


def test_repeated_handler_error_is_a_500_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_request: HttpRequest) -> Response:
        raise RuntimeError("a defect")

    async def main() -> None:
        async with serving(fail) as (_, port):
            for _ in range(3):
                assert await ask(port) == b"HTTP/1.1 500 Internal Server Error\r\n"

    run(main)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_invalid_response_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def unsendable(_request: HttpRequest) -> Response:
        return Response(200, b"", headers=(("x-blank", " first"),))

    async def main() -> None:
        async with serving(unsendable) as (_, port):
            assert await ask(port) == b""

    run(main)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_malformed_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with serving() as (_, port):
            for sent in (b"\x16\x03\x01\x02\r\n\r\n", b"GET /\r\n\r\n"):
                assert await ask(port, sent) == b"HTTP/1.1 400 Bad Request\r\n"
            upgrade = HEALTHY.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: websocket\r\nHost")
            assert await ask(port, upgrade) == b"HTTP/1.1 200 OK\r\n"

    run(main)
    assert [record for record in caplog.records if record.name.startswith(("rankscope", "uvicorn"))] == []


def test_pipelined_requests_are_answered_after_the_client_half_closes() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTHY * 5)
            writer.write_eof()
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).count(b"\r\n\r\nhealthy\n") == 5
            writer.close()

    run(main)


def test_ipv4_client_of_a_dual_stack_socket_is_shown_as_ipv4() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("the kernel has no IPv6")
    peers: list[str] = []

    async def note(request: HttpRequest) -> Response:
        peers.append(request.peer)
        return Response(200, b"")

    async def main() -> None:
        sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        port = sock.getsockname()[1]
        server = Server([ListenEndpoint(sock, application(note))])
        server.start()
        assert await ask(port) == b"HTTP/1.1 200 OK\r\n"
        await server.stop()

    run(main)
    assert peers == ["127.0.0.1"]
