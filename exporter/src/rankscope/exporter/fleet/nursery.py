"""The daemon's handle on the nursery: the process that starts, kills and reaps the processes that call the driver."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import Any, Final, Self

from rankscope.base.errors import MissingError, RankscopeError
from rankscope.exporter.fleet.nursery_process import LoadDriver, run
from rankscope.exporter.fleet.wire import Exited, Hello, Kill, Spawn, SpawnProbe, Started, decode_from_nursery, encode
from rankscope.exporter.source import Gpu

_HELLO_S: Final = 60.0
_END_S: Final = 1.0
_DATAGRAM_BYTES: Final = 65536


class NurseryLostError(Exception):
    """The nursery died: no process that calls the driver is alive, and none can be started."""


def load_driver() -> tuple[Any, Any]:
    """Load NVML's Python binding; return it and a factory of ``Gpu``. Called inside the nursery only."""
    from rankscope.exporter.nvml.gpu import NvmlGpu, load_nvml

    nvml = load_nvml()

    def make_gpu(pci_bus_id: str, collectors: frozenset[str], mark: Any) -> Gpu:
        return NvmlGpu(nvml, pci_bus_id, collectors, mark)

    return nvml, make_gpu


class Nursery:
    """Handle on the nursery, created by ``Nursery.start``.

    Only ``start`` and ``close`` block. Not thread-safe: one thread calls the methods.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._control.setblocking(False)
        self._unsent: deque[tuple[bytes, list[int]]] = deque()

    @classmethod
    def start(cls, load: LoadDriver = load_driver) -> Self:
        """Fork the nursery and wait until it is ready.

        Call this before other imports and before any thread starts: every child inherits the memory of this moment.

        Raises:
            MissingError: NVML's binding is not installed, or another package hides it.
            RankscopeError: the process could not be forked, or did not become ready.
        """
        daemon_end, nursery_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        daemon_pid = os.getpid()
        sys.stdout.flush()
        try:
            pid = os.fork()
        except OSError as error:
            raise RankscopeError(f"cannot start a process: {error.strerror}") from error
        if pid == 0:
            try:
                run(nursery_end, load, daemon_pid=daemon_pid)
            except BaseException:  # noqa: BLE001  a bug; the caller's frames are a copy of the daemon and must not run
                traceback.print_exc()
            os._exit(1)
        nursery_end.close()
        nursery = cls(pid, daemon_end)
        select.select([daemon_end], [], [], _HELLO_S)
        hello = next(iter(nursery.receive()), None)
        if isinstance(hello, Hello) and hello.error is None:
            return nursery
        nursery.close()
        if isinstance(hello, Hello) and hello.error is not None:
            raise MissingError(hello.error)
        raise RankscopeError(f"the process spawner did not start within {_HELLO_S:g} s")

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``receive`` has messages."""
        return self._control.fileno()

    def request(self, message: Spawn | SpawnProbe | Kill, *fds: int) -> None:
        """Send a request with duplicates of ``fds``; the caller closes its own. Raises ``NurseryLostError``."""
        # Duplicate now: the caller closes its descriptors while the request may still be queued.
        self._unsent.append((encode(message), [os.dup(fd) for fd in fds]))
        self.flush()

    def flush(self) -> None:
        """Send queued requests until the socket is full. Raises ``NurseryLostError``."""
        while self._unsent:
            datagram, fds = self._unsent[0]
            try:
                socket.send_fds(self._control, [datagram], fds)
            except BlockingIOError:
                return
            except OSError as error:
                raise NurseryLostError from error
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)

    def receive(self) -> list[Hello | Started | Exited]:
        """Return the messages received since the last call; raises ``NurseryLostError`` after a dead nursery's last message."""
        messages: list[Hello | Started | Exited] = []
        while True:
            try:
                datagram = self._control.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                return messages
            except OSError as error:
                raise NurseryLostError from error
            if not datagram:
                if messages:
                    return messages
                raise NurseryLostError
            messages.append(decode_from_nursery(datagram))

    def close(self) -> None:
        """End the nursery and all its children; those stuck in the driver are left behind."""
        self._control.close()
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        until = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    return
                time.sleep(0.005)
