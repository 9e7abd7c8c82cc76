"""Processes of this machine: signals, exit with the parent, children, systemd, the boot's id, a pause of garbage collection."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)
JOB_SIGNALS: Final = signal.valid_signals() - {
    getattr(signal, name)
    for name in (
        # no handler can be set
        *("SIGKILL", "SIGSTOP"),
        # about one process: its children, pipes, faults
        *("SIGCHLD", "SIGPIPE", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"),
        # job control of a shell, which stops the whole job
        *("SIGTSTP", "SIGTTIN", "SIGTTOU"),
    )
}
"""Signals that a user or a scheduler may send to a job."""


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the kernel send this new child process signal ``number`` when its parent exits. Does nothing outside Linux.

    "Parent" is the thread that forked the child: when that thread ends, the child is signalled, too.
    """
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_if_orphaned(parent: int) -> None:
    """Exit this process at once if ``parent`` exited before ``end_with_parent`` took effect."""
    if os.getppid() != parent:
        os._exit(1)


def notify_systemd(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd (``sd_notify``). Does nothing without systemd; errors are ignored."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collection of reference cycles, for work of some seconds on many records, which have none.

    The collector looks at all records again and again. Other objects are freed as always.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def boot_id(proc: Path = Path("/proc")) -> str:
    """Return the kernel's id of this boot; empty if it has none. Process ids and devices are comparable within a boot only."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def stat_fields(process: int | Literal["self"], proc: Path = Path("/proc")) -> list[str]:
    """Return a process's state (0), flags (6), ticks from boot to start (19) and the rest after its name, see proc(5)."""
    return (proc / str(process) / "stat").read_bytes().rpartition(b")")[2].decode().split()


def children_of(process: int | Literal["self"]) -> set[int]:
    """Return the process ids of the children of a process; empty where the system does not list them."""
    children = set[int]()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                children.update(map(int, (thread / "children").read_text().split()))
    return children
