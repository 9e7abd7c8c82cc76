"""Connections: TLS for the name that the operator wrote, the operator's certificates, and the operator's proxy."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.alerts.deliver.test_notifiers import notice
from tests.local_http import answering, respond

from rankscope.alerts.deliver.http_client import http_client, proxy_for
from rankscope.alerts.deliver.notifiers import Alertmanager
from rankscope.alerts.deliver.post import DeliveryError, NoAnswerError, post
from rankscope.alerts.deliver.target_file import load_destinations
from rankscope.base.errors import RankscopeError


@pytest.fixture
def names_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve all names under ``example`` to this machine."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *how: Any, **more: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".example") else host, *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate for ``hooks.example`` and its key, in one file that is its own authority."""
    key, certificate, both = tmp_path / "key.pem", tmp_path / "certificate.pem", tmp_path / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    subprocess.run([*command, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return both


@contextmanager
def tls_server(authority: Path, *, client_certificates: bool = False) -> Iterator[int]:
    """Yield the port of a server for HTTPS."""

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
    if client_certificates:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def tls_port(authority: Path) -> Iterator[int]:
    with tls_server(authority) as port:
        yield port


@pytest.mark.usefixtures("names_of_this_machine")
def test_alertmanager_post_sends_client_certificate_and_password(authority: Path, tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    (tmp_path / "login").write_text("watcher:s3cr3t")
    with tls_server(authority, client_certificates=True) as port:
        (tmp_path / "address").write_text(f"https://hooks.example:{port}")
        result = '[[alertmanager]]\nurl_file = "address"\nca_file = "both.pem"\nbasic = { file = "login" }\n'
        file.write_text(f'{result}cert_file = "both.pem"\nkey_file = "both.pem"\n{result}')
        with_certificate, without = (Alertmanager(endpoint, valid_s=None) for endpoint in load_destinations(file).alertmanagers)
        alert = notice()
        with_certificate.send([alert], now_unix_ns=0)
        with pytest.raises(DeliveryError) as refused:
            without.send([alert], now_unix_ns=0)
        assert "s3cr3t" not in str(refused.value)
        # a file that disappears, or is unusable, is a failed attempt
        authority.write_text("nothing")
        with pytest.raises(DeliveryError, match="cannot connect"):
            with_certificate.send([alert], now_unix_ns=0)
    assert with_certificate.name == f"Alertmanager {tmp_path}/address"


def test_alertmanager_password_is_read_from_file_or_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def note(request: BaseHTTPRequestHandler, _: bytes) -> None:
        seen.append(request.headers["Authorization"])
        respond(request, 200)

    monkeypatch.setenv("MANAGER_TOKEN", "s3cr3t")
    (tmp_path / "login").write_text("me:s3cr3t")
    with answering(note) as url:
        (tmp_path / "alerts.toml").write_text(
            f'[[alertmanager]]\nurl = "{url}"\nbearer = {{ env = "MANAGER_TOKEN" }}\n'
            f'[[alertmanager]]\nurl = "{url}"\nbasic = {{ file = "login" }}\n'
        )
        for endpoint in load_destinations(tmp_path / "alerts.toml").alertmanagers:
            Alertmanager(endpoint, valid_s=None).send([notice()], now_unix_ns=0)
        # a replaced file is used by the next post
        (tmp_path / "login").write_text("me:n3w")
        Alertmanager(endpoint, valid_s=None).send([notice()], now_unix_ns=0)
    assert seen == ["Bearer s3cr3t", "Basic bWU6czNjcjN0", "Basic bWU6bjN3"]


@pytest.mark.usefixtures("names_of_this_machine")
def test_tls_verifies_the_host_name_against_the_configured_ca(authority: Path, tls_port: int) -> None:
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
def test_proxy_error_does_not_reveal_the_password(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)  # as if it were not installed
    with pytest.raises(RankscopeError, match="proxy") as caught:
        http_client("http://hooks.example/", proxy=proxy)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [("http://me:s3cr3t@127.0.0.1:{port}/s3cr3t", "http://127.0.0.1:{port}/…"), ("garbage.invalid", "http://garbage.invalid")],
)
def test_proxy_error_names_the_proxy(
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


def test_proxy_timeout_names_the_proxy(trickle: str) -> None:
    with http_client("http://10.1.2.3/", proxy=trickle) as client, pytest.raises(NoAnswerError) as caught:
        post(client, "http://10.1.2.3/", b"{}", attempt_s=0.2)
    assert caught.value.late
    assert str(caught.value).endswith(trickle.removesuffix("/"))


def test_proxy_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
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
