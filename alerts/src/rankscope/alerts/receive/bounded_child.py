"""A ``rankscope`` command in a process with limits of memory, output and time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

MEMORY_BYTES: Final = 8 * 2**30
"""Limit on a child's address space."""
OUTPUT_BYTES: Final = 64 * 2**20
_END_S: Final = 5.0
"""Maximum wait for a killed process: one that hangs on a dead disk may never exit."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """Result of a child process."""

    status: int | None
    """Exit status; ``None`` if the child was killed at its time limit."""
    output: bytes
    error: str
    """Last line of standard error."""


_LAUNCHER: Final = """
import ctypes, os, resource, signal, sys
parent, address, output, *command = sys.argv[1:]
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    sys.exit("the receiver exited")
for limit, most in ((resource.RLIMIT_AS, int(address)), (resource.RLIMIT_FSIZE, int(output)), (resource.RLIMIT_CORE, 0)):
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
os.execv(sys.executable, [sys.executable, *command])
"""
"""Sets its own limits, then execs the command. Code between fork and exec could deadlock on another thread's lock."""


class BoundedChild:
    """``rankscope ARGUMENTS…`` in a process with limited memory, killed after ``limit_s``.

    The kernel ends the process when the thread that started it exits (Linux).
    """

    def __init__(self, arguments: Sequence[str], *, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s
        self._finished: ChildResult | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``poll``
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(MEMORY_BYTES), str(OUTPUT_BYTES)]
        self._process = subprocess.Popen(
            [*launcher, "-m", "rankscope", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    def poll(self) -> ChildResult | None:
        """Return the result; ``None`` while the process runs."""
        if self._finished is None:
            status = self._process.poll()
            if status is None:
                if time.monotonic() < self._until:
                    return None
                self.end()
            output, errors = (_all_of(file) for file in (self._output, self._errors))
            lines = errors.decode(errors="replace").strip().splitlines()
            self._finished = ChildResult(status, output, lines[-1].removeprefix("rankscope: ") if lines else "")
        return self._finished

    def wait(self) -> ChildResult:
        """Wait for the process, and return the result."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._until - time.monotonic()))
        while (finished := self.poll()) is None:
            time.sleep(0.01)
        return finished

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)


def _all_of(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read(OUTPUT_BYTES)
