"""A command of ours in a process of its own: a run that is damaged or huge takes down nobody but it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from rankscope.alerts.child import end_with_parent

MEMORY_BYTES: Final = 8 * 2**30
"""Of address space."""
OUTPUT_BYTES: Final = 64 * 2**20
_END_S: Final = 5.0
"""A process that hangs on a dead disk does not even end when it is killed; it is not waited for."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of it."""

    status: int | None
    """Exit status; ``None``: it was ended when its time was up."""
    output: bytes
    said: str
    """The last line of its standard error."""


class BoundedChild:
    """``rankscope ARGUMENTS…``, begun at once and ended after ``limit_s``, or when the thread that made it ends."""

    def __init__(self, arguments: Sequence[str], *, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s
        self._finished: Finished | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever polls for the end
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rankscope", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            preexec_fn=_bounded,  # noqa: PLW1509 - three system calls that take no lock
        )

    def poll(self) -> Finished | None:
        """What came of it; ``None`` while it runs."""
        if self._finished is None:
            status = self._process.poll()
            if status is None:
                if time.monotonic() < self._until:
                    return None
                self.end()
            output, errors = (_all_of(file) for file in (self._output, self._errors))
            lines = errors.decode(errors="replace").strip().splitlines()
            self._finished = Finished(status, output, lines[-1].removeprefix("rankscope: ") if lines else "")
        return self._finished

    def wait(self) -> Finished:
        """What came of it, when it is over."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._until - time.monotonic()))
        while (finished := self.poll()) is None:
            time.sleep(0.01)
        return finished

    def end(self) -> None:
        """End it now."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)


def _all_of(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read(OUTPUT_BYTES)


def _bounded() -> None:
    end_with_parent()
    for what, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, OUTPUT_BYTES), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
