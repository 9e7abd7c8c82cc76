"""The daemon's end of a GPU's process, without the process, and identities of GPUs."""

from __future__ import annotations

import os
import socket
import time

from rankscope.exporter.fleet.call_board import CallBoard, new_board
from rankscope.exporter.fleet.children import Child
from rankscope.exporter.source import GpuIdentity


def identity(number: int, *, bus: int | None = None) -> GpuIdentity:
    index = bus if bus is not None else number
    return GpuIdentity(f"GPU-{number}", index=index, model="Test GPU", pci_bus_id=f"00000000:{0x1A + index:02x}:00.0")


def connected_child() -> tuple[Child, socket.socket, CallBoard]:
    """Return a child, and the process's ends of its connection and of its call board."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    fd = new_board()
    child, board = Child(1, ours, CallBoard(fd), time.monotonic()), CallBoard(fd)
    os.close(fd)
    return child, theirs, board


def disconnect(child: Child, theirs: socket.socket) -> None:
    assert child.connection is not None
    child.connection.close()
    theirs.close()
