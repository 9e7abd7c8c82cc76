"""Telling systemd, which names a socket in ``NOTIFY_SOCKET``, how far we are."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send ``READY=1`` or the like; without systemd, and when it does not listen, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)
