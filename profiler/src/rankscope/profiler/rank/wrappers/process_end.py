"""How the process of a rank ends: an exception, ``sys.exit``, ``os._exit``, or the end of a child of ``multiprocessing``.

Python calls no hook with the exit status, and children of ``multiprocessing`` call neither ``atexit`` nor ``sys.excepthook``.
So the recorder listens in four places; whichever comes first ends the recording. The exit status itself is known to the C
library only, which leaves it in the memory of the ring. A process that a signal kills while the
interpreter shuts down leaves none. One that becomes another program (``os.execv``) leaves that of success.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, Final

from rankscope.profiler.ring import EXIT_STATUS, EXIT_STATUS_OFFSET, NO_EXIT_STATUS, EndState

_FIXED: Final = 0x10
"""``MAP_FIXED`` of Linux."""
_UNBUFFERED: Final = 2
"""``_IONBF`` of glibc."""

_address: int | None = None
"""Page in which the C library leaves the exit status; it stays mapped until the process is gone."""
_close: Callable[[EndState], None] | None = None


def end_of(error: BaseException | None) -> EndState:
    """Return the end state of a script that ``error`` ended: a crash, unless it is Ctrl-C or a ``sys.exit`` with success."""
    if isinstance(error, KeyboardInterrupt):
        return EndState.INTERRUPTED
    if isinstance(error, SystemExit):
        # Of a number, the system keeps the last 8 bits: a status of 256 is that of success.
        code = error.code & 0xFF if isinstance(error.code, int) else error.code
        return EndState.CRASH if code else EndState.EXIT
    return EndState.EXIT if error is None else EndState.CRASH


def watch_end(close: Callable[[EndState], None], memory: int | None) -> Callable[[bool], None]:
    """Call ``close`` when this process ends, and let its exit status be left in the ring, whose handle is ``memory``.

    Returns a function that undoes this, for the status unless its argument says that the process ends.
    """
    global _close  # noqa: PLW0603  # a process ends once
    previous = sys.excepthook

    def at_exit() -> None:
        close(end_at_exit)

    def at_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        close(end_of(error))
        previous(kind, error, trace)

    def forget(exiting: bool) -> None:
        global _close  # noqa: PLW0603
        _close = None
        atexit.unregister(at_exit)
        of_child.cancel()
        # A hook that was installed later may call this one.
        if sys.excepthook is at_exception:
            sys.excepthook = previous
        if not exiting:
            _leave_no_status()

    def at_end_of_child() -> None:
        # Children of multiprocessing run finalizers while the exception that ends them is being handled.
        error = sys.exc_info()[1]
        close(end_at_exit if error is None else end_of(error))

    atexit.register(at_exit)
    sys.excepthook = at_exception
    of_child = Finalize(None, at_end_of_child, exitpriority=0)
    _close = close
    leaves_status = False
    with suppress(Exception):  # only glibc can; elsewhere an exit status is not known
        leaves_status = memory is not None and _leave_status(memory)
    # Without a report the exit status decides: a signal may still kill the process, as when a thread of gloo aborts it.
    end_at_exit = EndState.SILENT if leaves_status else EndState.EXIT
    return forget


def watch_immediate_exits() -> None:
    """Let ``os._exit`` and ``os.exec*``, which call nothing else, end the recording first. To be called once in a process."""
    original = os._exit

    @wraps(original)
    def exit_immediately(status: int) -> Any:
        if _close is not None:
            with suppress(Exception):
                _close(end_of(SystemExit(status)))
        with suppress(Exception):  # a handler of ``atexit`` may end the process after the recording was closed
            _set_status(status)
        original(status)

    os._exit = exit_immediately
    # All others of ``os`` call these two.
    os.execv = _exec_with_status(os.execv)
    os.execve = _exec_with_status(os.execve)


def _exec_with_status(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def execute(*args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            _set_status(0)
        try:
            original(*args, **kwargs)
        finally:
            # There is no such program; this process goes on.
            with suppress(Exception):
                _set_status(NO_EXIT_STATUS)

    return execute


def forget_in_child() -> None:
    """Let the end of a forked child of the rank be its own matter."""
    global _close  # noqa: PLW0603
    _close = None
    _leave_no_status()


def _leave_no_status() -> None:
    if _address is not None:
        _map_page(_address, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def _set_status(status: int) -> None:
    if _address is not None:
        ctypes.c_int.from_address(_address + EXIT_STATUS_OFFSET).value = status


def _leave_status(memory: int) -> bool:
    """Let the C library write the status of ``exit`` into the ring: ``on_exit`` calls ``putw(status, stream)``.

    Returns whether it will.
    """
    global _address  # noqa: PLW0603
    address = _map_page(_address, mmap.MAP_SHARED, memory)
    if address is None or not (_address is not None or _writes_at_exit(address + EXIT_STATUS_OFFSET)):
        return False
    _address = address
    os.pwrite(memory, EXIT_STATUS.pack(NO_EXIT_STATUS, True), EXIT_STATUS_OFFSET)
    return True


def _writes_at_exit(address: int) -> bool:
    libc = ctypes.CDLL(None)
    libc.fmemopen.restype = ctypes.c_void_p
    stream = libc.fmemopen(ctypes.c_void_p(address), ctypes.c_size_t(4), b"r+")
    if stream is None:
        return False
    libc.setvbuf(ctypes.c_void_p(stream), None, _UNBUFFERED, ctypes.c_size_t(0))
    return bool(libc.on_exit(ctypes.cast(libc.putw, ctypes.c_void_p), ctypes.c_void_p(stream)) == 0)


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
