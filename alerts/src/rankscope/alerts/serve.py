"""Serving the receiver: the socket, who may reach it, and a clean end."""

from __future__ import annotations

import ipaddress
import signal
import socket

import uvicorn

from rankscope.alerts.receiver import ReceiverApp
from rankscope.runs.errors import InputError

STOP_S = 2
"""Requests still running after a signal get this long."""


def parse_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPV6]:PORT``. Raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address is written as [ADDRESS]:PORT")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected HOST:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``InputError`` naming the address when that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise InputError(where, f"cannot listen there: {error.strerror or error}; choose another with --listen") from error
    return sock


def serve(app: ReceiverApp, sock: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=64,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=STOP_S,
    )
    # uvicorn raises a signal again after it has shut down; the end was clean, so that second one is ours to swallow.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[sock])
