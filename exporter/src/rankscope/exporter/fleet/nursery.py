"""The daemon's handle on the nursery: the process that starts, kills and buries the processes that call the driver."""

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

from rankscope.exporter.errors import ExporterInputError, ExporterMissingError
from rankscope.exporter.fleet.nursery_process import LoadDriver, run
from rankscope.exporter.fleet.wire import Exited, Hello, Kill, Spawn, SpawnProbe, Started, decode_from_nursery, encode
from rankscope.exporter.source import Gpu

_HELLO_S: Final = 60.0
_END_S: Final = 1.0
_DATAGRAM_BYTES: Final = 65536


class NurseryLostError(Exception):
    """The nursery died: nothing that calls the driver is alive, and nothing can be started."""


def load_driver() -> tuple[Any, Any]:
    """The real thing, loaded inside the nursery only: NVML's binding, and a ``Gpu`` that uses it."""
    from rankscope.exporter.nvml.gpu import NvmlGpu, load_nvml

    nvml = load_nvml()

    def make_gpu(pci_bus_id: str, collectors: frozenset[str], mark: Any) -> Gpu:
        return NvmlGpu(nvml, pci_bus_id, collectors, mark)

    return nvml, make_gpu


class Nursery:
    """Made by ``Nursery.start``. Nothing here waits, ``start`` and ``close`` excepted; one thread uses it."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._control.setblocking(False)
        self._unsent: deque[tuple[bytes, list[int]]] = deque()

    @classmethod
    def start(cls, load: LoadDriver = load_driver) -> Self:
        """Fork it. Call this before anything else is imported or any thread is started: what is in memory now is in every child.

        Raises:
            ExporterMissingError: NVML's binding is not installed, or another package hides it.
            ExporterInputError: this machine does not let it start.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        daemon_pid = os.getpid()
        sys.stdout.flush()
        try:
            pid = os.fork()
        except OSError as error:
            raise ExporterInputError(f"cannot start a process: {error.strerror}") from error
        if pid == 0:
            try:
                run(theirs, load, daemon_pid=daemon_pid)
            except BaseException:  # noqa: BLE001  a defect of ours; above here is a copy of the daemon that must not go on
                traceback.print_exc()
            os._exit(1)
        theirs.close()
        nursery = cls(pid, ours)
        select.select([ours], [], [], _HELLO_S)
        hello = next(iter(nursery.receive()), None)
        if isinstance(hello, Hello) and hello.error is None:
            return nursery
        nursery.close()
        if isinstance(hello, Hello) and hello.error is not None:
            raise ExporterMissingError(hello.error)
        raise ExporterInputError("the process that starts all others does not come up")

    def fileno(self) -> int:
        """Readable when there is something to ``receive``."""
        return self._control.fileno()

    def request(self, what: Spawn | SpawnProbe | Kill, *fds: int) -> None:
        """Ask for it; the descriptors are duplicated, so the caller closes its own. Raises ``NurseryLostError``."""
        # Duplicated now, because the caller closes its own while this may still wait in line.
        self._unsent.append((encode(what), [os.dup(fd) for fd in fds]))
        self.flush()

    def flush(self) -> None:
        """Send what could not be sent before. Raises ``NurseryLostError``."""
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
        """What it has said since; raises ``NurseryLostError`` when it is gone, after its last words."""
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
        """End it and with it all its children; those stuck in the driver are left behind."""
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
