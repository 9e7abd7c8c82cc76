"""Listening sockets and credentials."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from rankscope.base.http import basic_credentials, bearer_token, bind


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_every_address_means_ipv4_and_ipv6(host: str) -> None:
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


def test_every_address_is_every_ipv4_address_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    def socket_without_ipv6(family: int = -1, *arguments: object, **options: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *arguments, **options)  # type: ignore[arg-type]

    real = socket.socket
    monkeypatch.setattr(socket, "socket", socket_without_ipv6)
    with bind("::", 0) as sock:
        assert sock.family == socket.AF_INET
        socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=120).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "x" * 64])
def test_an_address_of_another_machine_is_an_error_with_a_reason(host: str) -> None:
    with pytest.raises(OSError, match=r"\[Errno") as refused:
        bind(host, 0)
    assert refused.value.strerror


def test_credentials_of_a_header() -> None:
    assert basic_credentials(b"Basic YW5uOmE6Yg==") == (b"ann", b"a:b")
    assert bearer_token(b"bearer  token ") == b"token"
    for other in (b"", b"Basic", b"Basic !!", b"Basic YW5u", b"Bearer x"):
        assert basic_credentials(other) is None
    for other in (b"", b"Basic YW5uOmE6Yg=="):
        assert bearer_token(other) is None
