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
    """Shared memory behind ``fd``, created by ``new_board``. One process writes, another reads."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)
        # One aligned machine word is written by a single store, so a reader never sees a torn timestamp.
        self._began_ns = memoryview(self._memory)[:_NAME_AT].cast("q")
        self._padded: dict[str, bytes] = {}

    def mark(self, call: str) -> None:
        """Record that this process enters ``call`` now. An empty name means that it is in no call."""
        if not call:
            self._began_ns[0] = 0
            return
        name = self._padded.get(call)
        if name is None:
            name = self._padded[call] = call.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        self._memory[_NAME_AT:_SIZE] = name
        self._began_ns[0] = time.monotonic_ns()

    def began_ns(self) -> int:
        """Return the start of the current call in nanoseconds of ``CLOCK_MONOTONIC``; 0 outside any call."""
        return self._began_ns[0]

    def call(self) -> str:
        """Return the name of the current or last call.

        Reliable only while the process is stuck in that call; otherwise a concurrent write may mix two names.
        """
        return self._memory[_NAME_AT:_SIZE].rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Unmap the memory."""
        self._began_ns.release()
        self._memory.close()


def new_board() -> int:
    """Create an anonymous shared memory (memfd) for a ``CallBoard`` and return its descriptor."""
    fd = os.memfd_create("rankscope-call", os.MFD_CLOEXEC)
    os.ftruncate(fd, _SIZE)
    return fd
