"""The nursery's own side: a small process with one thread that loads NVML's binding, forks a child per request, and reaps it.

It never calls NVML, so it never hangs. As the parent it can kill a child safely: a pid is not reused before the parent reaps it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from rankscope.base.errors import RankscopeError
from rankscope.base.process import end_if_orphaned, end_with_parent
from rankscope.exporter.fleet.call_board import CallBoard
from rankscope.exporter.fleet.probe import probe
from rankscope.exporter.fleet.wire import Exited, FromNursery, Hello, Kill, Spawn, SpawnProbe, Started, decode_to_nursery, encode
from rankscope.exporter.fleet.worker import work
from rankscope.exporter.source import Gpu

MakeGpu = Callable[[str, frozenset[str], Callable[[str], None]], Gpu]
LoadDriver = Callable[[], tuple[Any, MakeGpu]]

_DATAGRAM_BYTES: Final = 65536
_LEAKED_OBJECTS: Final = 20_000
_LAST_REAP_S: Final = 0.3
_PR_SET_NAME: Final = 15
_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(control: socket.socket, load: LoadDriver, *, daemon_pid: int) -> NoReturn:
    """Serve requests until the daemon closes ``control``. ``load`` returns the NVML module and a factory of ``Gpu``."""
    _become("rankscope-seed", parent=daemon_pid, keep=[control.fileno(), 2])
    try:
        nvml, make_gpu = load()
    except RankscopeError as error:
        _send(control, Hello(str(error)))
        os._exit(1)
    # Keep these pages shared with all children: the garbage collector would write into every object it visits.
    freeze_gc()
    _send(control, Hello(None))
    _NurseryProcess(control, nvml, make_gpu).serve()
    os._exit(0)


def freeze_gc() -> None:
    """Exclude all existing objects from garbage collection, and collect rarely from now on."""
    gc.collect()
    gc.freeze()
    # A pass frees as many objects as it allocates; only reference cycles need the collector, and there are very few.
    gc.set_threshold(_LEAKED_OBJECTS)


class _NurseryProcess:
    def __init__(self, control: socket.socket, nvml: Any, make_gpu: MakeGpu) -> None:
        self._control = control
        self._nvml = nvml
        self._make_gpu = make_gpu
        self._pids: dict[int, int] = {}
        self._own_pid = os.getpid()

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._handle_request():
                break
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _LAST_REAP_S
        while self._pids and time.monotonic() < until:
            time.sleep(0.002)
            self._reap()

    def _handle_request(self) -> bool:
        """Handle one request; return False if the daemon closed the socket."""
        try:
            datagram, fds, _, _ = socket.recv_fds(self._control, _DATAGRAM_BYTES, 2)
        except ConnectionError:
            return False
        if not datagram:
            return False
        request = decode_to_nursery(datagram)
        try:
            if isinstance(request, Kill):
                # A child that is not reaped yet keeps its pid.
                if request.child in self._pids:
                    os.kill(self._pids[request.child], signal.SIGKILL)
            else:
                self._start(request, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _start(self, request: Spawn | SpawnProbe, fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            _send(self._control, Exited(request.child, f"could not be started: {error.strerror}"))
            return
        if pid == 0:
            status = 1
            try:
                self._run_child(request, fds)
                status = 0
            finally:
                os._exit(status)
        self._pids[request.child] = pid
        _send(self._control, Started(request.child, pid))

    def _run_child(self, request: Spawn | SpawnProbe, fds: list[int]) -> None:
        name = f"rs-gpu-{request.pci_bus_id[-7:]}" if isinstance(request, Spawn) else "rs-probe"
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _become(name, parent=self._own_pid, keep=fds)
        connection, board = socket.socket(fileno=fds[0]), CallBoard(fds[1])
        if isinstance(request, Spawn):
            work(
                connection,
                board,
                lambda: self._make_gpu(request.pci_bus_id, request.collectors, board.mark),
                interval_s=request.interval_s,
            )
        else:
            probe(connection, board, self._nvml, list_unless=request.list_unless, skip=frozenset(request.skip))

    def _reap(self) -> None:
        by_pid = {pid: child for child, pid in self._pids.items()}
        while by_pid:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = by_pid.pop(pid)
            del self._pids[child]
            code = os.waitstatus_to_exitcode(status)
            _send(self._control, Exited(child, f"ended by signal {-code}" if code < 0 else f"ended with status {code}"))


def _become(name: str, *, parent: int, keep: Iterable[int]) -> None:
    """Detach this process from the daemon: die with the parent, ignore the daemon's signals, close all descriptors but ``keep``.

    A service manager signals all processes of a service at once. Children ignore that and exit when their socket closes, so that
    the daemon shuts down in order.
    """
    end_with_parent(signal.SIGKILL)
    end_if_orphaned(parent)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    kept_fds = set(keep)
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd not in kept_fds:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)
    # Libraries assume that descriptors 0, 1 and 2 are open.
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(null)


def _send(control: socket.socket, message: FromNursery) -> None:
    # The next read notices that the daemon exited.
    with contextlib.suppress(ConnectionError):
        control.send(encode(message))
