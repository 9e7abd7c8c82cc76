"""Pages read over HTTP from servers of all kinds, including broken ones."""

from __future__ import annotations

import base64
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from rankscope.profiler.helper.sampling import exporter_page
from rankscope.profiler.helper.sampling.exporter_page import MAX_PAGE_BYTES, ScrapeError, fetch, parse_target

Answer = Callable[[Any], None]
Serve = Callable[[Answer], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Function ``serve(answer)``, which answers GET with ``answer(handler)`` and returns the address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):
                    answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def page(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Return an answer with that body."""

    def answer(handler: Any) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_a_page_is_fetched_without_the_proxy_of_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetch(parse_target(serve(page(b"gpu_up 1\n")))) == b"gpu_up 1\n"


def test_user_and_password_are_sent_and_never_shown(serve: Serve) -> None:
    seen: list[tuple[str, str]] = []

    def answer(handler: Any) -> None:
        seen.append((handler.headers["Authorization"], handler.path))
        page(b"", 401)(handler)

    target = parse_target(serve(answer).replace("http://", "http://me:se%20cret@") + "/m?a=1")
    with pytest.raises(ScrapeError, match="401") as refusal:
        fetch(target)
    assert seen == [("Basic " + base64.b64encode(b"me:se cret").decode(), "/m?a=1")]
    assert "cret" not in f"{target} {target.shown} {refusal.value}"
    assert target.shown.endswith("/m?a=1")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page(b"", 302, {"Location": "http://127.0.0.1:1/"}), "status 302"),
        (page(b"x" * (MAX_PAGE_BYTES + 1)), "more than"),
        (page(b"half", 200, {"Content-Length": "8"}), "cut off"),
        (lambda handler: handler.wfile.write(b"220 smtp ready\r\n"), "smtp"),
    ],
    ids=["redirect", "too large", "cut off", "another service"],
)
def test_what_is_no_page_is_an_error_that_says_why(serve: Serve, answer: Answer, reason: str) -> None:
    with pytest.raises(ScrapeError, match=reason):
        fetch(parse_target(serve(answer)))


def test_nobody_there(refusing_port: int) -> None:
    with pytest.raises(ScrapeError, match="refused"):
        fetch(parse_target(f"http://127.0.0.1:{refusing_port}/metrics"))


@pytest.mark.parametrize("first", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.0 200 OK\r\n\r\n"], ids=["head", "body"])
def test_a_page_that_drips_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(exporter_page, "DEADLINE_SECONDS", 0.3)

    def drip(handler: Any) -> None:
        handler.wfile.write(first)
        while True:
            handler.wfile.write(b"X-A: b\r\n")
            time.sleep(0.02)

    with pytest.raises(ScrapeError, match="too long"):
        fetch(parse_target(serve(drip)))


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_page, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ScrapeError, match=r"timed out|too long"):
        fetch(parse_target(f"http://127.0.0.1:{silent.getsockname()[1]}"))


@pytest.mark.parametrize(
    "url",
    ["", "host:9838", "ftp://a/", "http://", "http://a:x:secret@h:port/", "http://h/a b", "http://h/\r\nHost: b", "http://[::1"],
)
def test_what_is_no_address_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="address") as refusal:
        parse_target(url)
    assert "secret" not in str(refusal.value)


def test_an_address_has_a_path_of_its_own_or_the_usual_one() -> None:
    assert (parse_target("https://h").path, parse_target("http://h:1/x").path) == ("/metrics", "/x")
    assert parse_target("https://[::1]:9/").port == 9
