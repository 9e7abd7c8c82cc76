"""How the process of a rank ends: an exception, ``sys.exit``, ``os._exit``, or the end of a child of ``multiprocessing``.

Python calls no hook with the exit status, and children of ``multiprocessing`` call neither ``atexit`` nor ``sys.excepthook``.
So the recorder listens in four places; whichever comes first ends the recording. The exit status itself is known to the C
library only, which leaves it in a file of shared memory that the helper reads.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rankscope.profiler.handover import NO_EXIT_STATUS
from rankscope.profiler.ring import End

_FIXED: Final = 0x10
"""``MAP_FIXED`` of Linux."""
_UNBUFFERED: Final = 2
"""``_IONBF`` of glibc."""

_address: int | None = None
"""Where the C library leaves the exit status; it stays mapped until the process is gone."""
_close: Callable[[End], None] | None = None


def end_of(error: BaseException | None) -> End:
    """Return the end state of a script that ``error`` ended: a crash, unless it is Ctrl-C or a ``sys.exit`` with success."""
    if isinstance(error, KeyboardInterrupt):
        return End.INTERRUPTED
    if isinstance(error, SystemExit):
        # Of a number, the system keeps the last 8 bits: a status of 256 is that of success.
        code = error.code & 0xFF if isinstance(error.code, int) else error.code
        return End.CRASH if code else End.EXIT
    return End.EXIT if error is None else End.CRASH


def watch_end(close: Callable[[End], None], status_file: Path) -> Callable[[], None]:
    """Call ``close`` when this process ends, and let its exit status be left in ``status_file``.

    Returns a function that undoes this.
    """
    global _close  # noqa: PLW0603  # a process ends once
    previous = sys.excepthook

    def at_exit() -> None:
        close(End.EXIT)

    def at_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        close(end_of(error))
        previous(kind, error, trace)

    def forget() -> None:
        global _close  # noqa: PLW0603
        _close = None
        atexit.unregister(at_exit)
        of_child.cancel()
        # A hook that was installed later may call this one.
        if sys.excepthook is at_exception:
            sys.excepthook = previous

    atexit.register(at_exit)
    sys.excepthook = at_exception
    # Children of multiprocessing run finalizers while the exception that ends them is being handled.
    of_child = Finalize(None, lambda: close(end_of(sys.exc_info()[1])), exitpriority=0)
    _close = close
    with suppress(Exception):  # only glibc can; elsewhere an exit status is not known
        _leave_status(status_file)
    return forget


def watch_immediate_exits() -> None:
    """Let ``os._exit``, which calls nothing else, end the recording first. To be called once in a process."""
    original = os._exit

    @wraps(original)
    def exit_immediately(status: int) -> Any:
        if _close is not None:
            with suppress(Exception):
                _close(end_of(SystemExit(status)))
        original(status)

    os._exit = exit_immediately


def forget_in_child() -> None:
    """Let the end of a forked child of the rank be its own matter."""
    global _close  # noqa: PLW0603
    _close = None
    if _address is not None:
        _map_page(_address, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def _leave_status(status_file: Path) -> None:
    """Let the C library write the status of ``exit`` (an ``int``) into the file: ``on_exit`` calls ``putw(status, stream)``."""
    global _address  # noqa: PLW0603
    libc = ctypes.CDLL(None)
    handle = os.open(status_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Allocated, as writing to a hole of a full tmpfs would kill the process; as a whole page, as ``mmap`` requires.
        os.posix_fallocate(handle, 0, mmap.PAGESIZE)
        os.pwrite(handle, struct.pack("i", NO_EXIT_STATUS), 0)
        address = _map_page(_address, mmap.MAP_SHARED, handle)
    finally:
        os.close(handle)
    if address is None or _address is not None:
        return
    libc.fmemopen.restype = ctypes.c_void_p
    stream = libc.fmemopen(ctypes.c_void_p(address), ctypes.c_size_t(4), b"r+")
    if stream is None:
        return
    libc.setvbuf(ctypes.c_void_p(stream), None, _UNBUFFERED, ctypes.c_size_t(0))
    if libc.on_exit(ctypes.cast(libc.putw, ctypes.c_void_p), ctypes.c_void_p(stream)) == 0:
        _address = address


def _map_page(address: int | None, flags: int, handle: int) -> int | None:
    """Map a page of a file, at ``address`` if given, and return where it is; ``None`` if that fails.

    Not by Python's ``mmap``, which would be unmapped before the process ends.
    """
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    flags |= 0 if address is None else _FIXED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    mapped: int | None = libc.mmap(ctypes.c_void_p(address), mmap.PAGESIZE, access, flags, handle, ctypes.c_long(0))
    return None if mapped == ctypes.c_void_p(-1).value else mapped
