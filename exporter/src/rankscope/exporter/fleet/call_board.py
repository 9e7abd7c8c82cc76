"""A small shared memory in which a process writes which call it is in, so that another can see a call that never returns.

Writing costs well under a microsecond and never waits. ``CLOCK_MONOTONIC`` is the same in all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

_NAME_AT: Final = 8
_NAME_BYTES: Final = 120
_SIZE: Final = _NAME_AT + _NAME_BYTES


class CallBoard:
    """The memory behind ``fd``, made by ``new_board``. One process writes, another reads."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)
        # One aligned machine word, written by one store: a reader never sees half a time.
        self._began_ns = memoryview(self._memory)[:_NAME_AT].cast("q")
        self._padded: dict[str, bytes] = {}

    def mark(self, call: str) -> None:
        """The calling process enters ``call`` now; an empty name means that it is in none."""
        if not call:
            self._began_ns[0] = 0
            return
        name = self._padded.get(call)
        if name is None:
            name = self._padded[call] = call.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        self._memory[_NAME_AT:_SIZE] = name
        self._began_ns[0] = time.monotonic_ns()

    def began_ns(self) -> int:
        """When the present call began, on the monotonic clock; 0 when there is none."""
        return self._began_ns[0]

    def call(self) -> str:
        """The name of the present or last call; for a process that is stuck in it, else it may be a mixture of two."""
        return self._memory[_NAME_AT:_SIZE].rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Unmap the memory."""
        self._began_ns.release()
        self._memory.close()


def new_board() -> int:
    """The descriptor of a fresh memory, which has no name in any folder."""
    fd = os.memfd_create("rankscope-call", os.MFD_CLOEXEC)
    os.ftruncate(fd, _SIZE)
    return fd
