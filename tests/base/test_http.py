"""Basics of HTTP servers: listen addresses, bound sockets or one-line errors, credentials of a request."""

from __future__ import annotations

import errno
import os
import socket

import click
import pytest

from rankscope.base.errors import InputError
from rankscope.base.http import basic_credentials, bearer_token, bind, host_port, is_loopback, open_listener
from rankscope.base.options import ListenAddress


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9099", ("127.0.0.1", 9099)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1%br-1]:80", ("fe80::1%br-1", 80)),
        (":8050", ("::", 8050)),
    ],
)
def test_listen_addresses_are_parsed(text: str, parsed: tuple[str, int]) -> None:
    assert ListenAddress().convert(text, None, None) == parsed
    assert ListenAddress().convert(parsed, None, None) == parsed


@pytest.mark.parametrize("text", ["", "9099", "127.0.0.1", "127.0.0.1:99999", "::1:9099", "[::1]", "[x]:1", "host:http"])
def test_malformed_listen_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        ListenAddress().convert(text, None, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_bound_socket_accepts_connections(host: str) -> None:
    with open_listener(host, 0) as sock, socket.create_connection(sock.getsockname()[:2], timeout=20):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "x" * 64])
def test_unusable_listen_address_is_an_error_naming_the_address(host: str) -> None:
    with pytest.raises(InputError, match=r"cannot listen there: .*--listen") as refused:
        open_listener(host, 0)
    assert refused.value.path == host_port(host, 0)


def test_an_address_in_use_is_an_error() -> None:
    with open_listener("127.0.0.1", 0) as taken, pytest.raises(InputError, match="in use"):
        open_listener("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_wildcard_address_accepts_ipv4_and_ipv6(host: str) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("the kernel has no IPv6")
    with bind("::", 0) as sock:
        port = sock.getsockname()[1]
        try:
            socket.create_connection((host, port), timeout=120).close()
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            pytest.skip(f"no address {host} on this machine")


def test_wildcard_address_is_ipv4_only_on_a_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    def socket_without_ipv6(family: int = -1, *arguments: object, **options: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *arguments, **options)  # type: ignore[arg-type]

    real = socket.socket
    monkeypatch.setattr(socket, "socket", socket_without_ipv6)
    with bind("::", 0) as sock:
        assert sock.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=120).close()


def test_basic_and_bearer_credentials_are_parsed() -> None:
    assert basic_credentials(b"Basic YW5uOmE6Yg==") == (b"ann", b"a:b")
    assert bearer_token(b"bearer  token ") == b"token"
    for other in (b"", b"Basic", b"Basic !!", b"Basic YW5u", b"Bearer x"):
        assert basic_credentials(other) is None
    for other in (b"", b"Basic YW5uOmE6Yg=="):
        assert bearer_token(other) is None
