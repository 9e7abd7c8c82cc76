"""Where a server of ours listens: the option's value, who can reach it, and the socket. Needs no extra."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any

import click

from rankscope.base import http
from rankscope.runs.errors import InputError


class Address(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """``HOST:PORT``, ``:PORT`` for all IPv4 and IPv6 addresses of this machine, ``[IPV6]:PORT``; the value is (host, port)."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Parse it; a usage error for anything else."""
        if isinstance(value, tuple):
            return value[0], value[1]
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^%\[\]]+)?)\]|([^:\[\]]*)):([0-9]{1,5})", str(value))
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, :PORT or [IPV6]:PORT", param, ctx)
        return match[1] or match[2] or "::", int(match[3])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on ``host``. A name other than ``localhost`` may lead anywhere: no."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_port(host: str, port: int) -> str:
    """As it is written in an address: ``HOST:PORT``, ``[IPV6]:PORT``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes any free one. Raises ``InputError`` when the address cannot be had.

    It listens before the server runs: then an address in use is one line here, not many of the server's.
    """
    try:
        return http.bind(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(host_port(host, port), f"cannot listen there: {reason}; choose another with --listen") from error
