"""Listen addresses of servers: their syntax, their reachability, and the bound socket or a one-line error."""

from __future__ import annotations

import socket

import click
import pytest

from rankscope.base.errors import InputError
from rankscope.base.http import host_port, is_loopback, open_listener
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
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert ListenAddress().convert(text, None, None) == parsed
    assert ListenAddress().convert(parsed, None, None) == parsed


@pytest.mark.parametrize("text", ["", "9099", "127.0.0.1", "127.0.0.1:99999", "::1:9099", "[::1]", "[x]:1", "host:http"])
def test_what_is_no_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        ListenAddress().convert(text, None, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_what_only_this_machine_can_reach(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_others_can_be_reached_from_elsewhere(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_bound_socket_listens(host: str) -> None:
    with open_listener(host, 0) as sock, socket.create_connection(sock.getsockname()[:2], timeout=20):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "x" * 64])
def test_an_address_that_cannot_be_had_is_an_error_that_names_it(host: str) -> None:
    with pytest.raises(InputError, match=r"cannot listen there: .*--listen") as refused:
        open_listener(host, 0)
    assert refused.value.path == host_port(host, 0)


def test_an_address_in_use_is_an_error() -> None:
    with open_listener("127.0.0.1", 0) as taken, pytest.raises(InputError, match="in use"):
        open_listener("127.0.0.1", taken.getsockname()[1])
