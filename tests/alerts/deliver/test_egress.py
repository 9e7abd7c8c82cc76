"""Connections go only to hosts that the operator named, at the address that was checked, through the operator's proxy."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.local_http import answering, respond

from rankscope.alerts.deliver.http import EgressError, PinnedTransport, check_address, http_client, proxy_for, resolve
from rankscope.alerts.deliver.post import NoAnswerError, post
from rankscope.base.errors import RankscopeError


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "127.0.0.1", "fd00::1", "8.8.8.8", "::1"])
def test_what_the_operator_named_may_be_private(address: str) -> None:
    check_address("hooks.internal", address)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "100.100.100.200",
    ],
)
def test_a_name_never_leads_to_metadata_but_the_address_itself_may_be_written(address: str) -> None:
    for name in ("metadata.evil.example", "2852039166", "0xa9fea9fe", "localhost"):
        with pytest.raises(EgressError, match="link-local"):
            check_address(name, address)
    check_address(address, address)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], list[str]]:
    """Function that sets the next answers of the name server and returns the list of hosts that were looked up."""

    def answer(addresses: list[str]) -> list[str]:
        asked: list[str] = []
        real = socket.getaddrinfo

        def getaddrinfo(host: str, port: int, *how: Any, **more: Any) -> list[Any]:
            if host[0].isdigit():  # an address that was resolved already
                return real(host, port, *how, **more)
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[min(len(asked), len(addresses)) - 1], port))]

        monkeypatch.setattr("rankscope.alerts.deliver.http.socket.getaddrinfo", getaddrinfo)
        return asked

    return answer


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(resolver: Callable[[list[str]], list[str]]) -> None:
    # Given a name that resolves to this machine first, and to another address on the second look-up
    hosts: list[str] = []

    def note(request: BaseHTTPRequestHandler, _: bytes) -> None:
        hosts.append(request.headers["Host"])
        respond(request, 200)

    with answering(note) as url:
        asked = resolver(["127.0.0.1", "169.254.169.254"])
        port = url.rsplit(":", 1)[1]
        address = f"http://hooks.example:{port}/"
        with http_client(address, proxy="") as client:
            assert post(client, address, b"{}").status == 200
            with pytest.raises(NoAnswerError, match="link-local") as caught:
                post(client, address, b"{}")
    assert not caught.value.sent
    assert (asked, hosts) == (["hooks.example"] * 2, [f"hooks.example:{port}"])


def test_a_name_with_many_dead_addresses_takes_no_longer_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [f"127.0.0.{number}" for number in range(2, 7)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr("rankscope.alerts.deliver.http.socket.getaddrinfo", lambda *_, **__: found)
    tried: list[tuple[str, float]] = []

    def dead(request: httpx.Request) -> httpx.Response:
        tried.append((request.url.host, request.extensions["timeout"]["connect"]))
        raise httpx.ConnectTimeout("")

    transport = PinnedTransport(httpx.MockTransport(dead))
    with httpx.Client(transport=transport, timeout=httpx.Timeout(7.0, connect=2.0)) as client, pytest.raises(NoAnswerError):
        post(client, "http://many.example/", b"{}")
    assert tried == [(address, 0.4) for address in addresses]


def test_a_name_server_that_does_not_answer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("rankscope.alerts.deliver.http.socket.getaddrinfo", lambda *_, **__: release.wait(30) and [])
    with pytest.raises(EgressError, match="name server"):
        resolve("slow.example", 80, timeout_s=0.05)
    release.set()


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate for ``hooks.example`` and its key, in one file that is its own authority."""
    key, certificate, both = tmp_path / "key.pem", tmp_path / "certificate.pem", tmp_path / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    subprocess.run([*command, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return both


@pytest.fixture
def tls_port(authority: Path) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            respond(self, 200)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore the failed handshake of a client that does not trust the certificate."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_tls_is_for_the_name_and_with_the_operators_authority(
    resolver: Callable[[list[str]], list[str]], authority: Path, tls_port: int
) -> None:
    resolver(["127.0.0.1"])
    for host, ca_file, good in (
        ("hooks.example", authority, True),
        ("other.example", authority, False),
        ("hooks.example", None, False),
    ):
        url = f"https://{host}:{tls_port}/"
        with http_client(url, ca_file=ca_file, proxy="") as client:
            if good:
                assert post(client, url, b"{}").status == 200
                continue
            with pytest.raises(NoAnswerError, match="certificate verify failed"):
                post(client, url, b"{}")


@pytest.mark.parametrize("proxy", ["socks5://me:s3cr3t@h", "http://me:s3cr3t@[::1", "ftp://me:s3cr3t@h"])
def test_a_proxy_that_cannot_be_used_is_one_line_without_its_password(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as if it were not installed
    with pytest.raises(RankscopeError, match="proxy") as caught:
        http_client("http://hooks.example/", proxy=proxy)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [("http://me:s3cr3t@127.0.0.1:{port}/s3cr3t", "http://127.0.0.1:{port}/…"), ("garbage.invalid", "http://garbage.invalid")],
)
def test_an_error_of_a_proxy_names_it(
    value: str, words: str, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name in ("http_proxy", "all_proxy", "no_proxy", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", value.format(port=port))
    # the path equals the proxy's name: the error must name the proxy, not quote the path
    url = "http://10.1.2.3/garbage"
    with http_client(url) as client, pytest.raises(NoAnswerError) as caught:
        post(client, url, b"{}")
    assert str(caught.value).endswith(f", through the proxy {words.format(port=port)}")
    assert "s3cr3t" not in str(caught.value)


def test_a_proxy_that_does_not_answer_is_named(trickle: str) -> None:
    with http_client("http://10.1.2.3/", proxy=trickle) as client, pytest.raises(NoAnswerError) as caught:
        post(client, "http://10.1.2.3/", b"{}", attempt_s=0.2)
    assert caught.value.late
    assert str(caught.value).endswith(trickle.removesuffix("/"))


def test_the_environments_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def proxied(request: BaseHTTPRequestHandler, _: bytes) -> None:
        asked.append(request.path)
        respond(request, 200)

    with answering(proxied) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", "inside.example,10.0.0.1")
        url = "http://hooks.invalid/hook"
        with http_client(url) as client:
            assert post(client, url, b"{}").status == 200
        assert asked == [url]
        assert (
            proxy_for("http://inside.example/") == proxy_for("http://10.0.0.1:80/") == proxy_for("https://hooks.invalid/") == ""
        )
        # the configuration takes precedence over the environment
        with http_client(url, proxy="") as client, pytest.raises(NoAnswerError):
            post(client, url, b"{}")
