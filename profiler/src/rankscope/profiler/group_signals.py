"""Signals to the whole process group of the launcher, which reach the job without it: Ctrl-C, ``kill -- -PGID``, those of Slurm.

Nothing tells a process who else received a signal. So a small process in the group of the launcher, the witness, reports its own.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, Self

_WITNESS: Final = """
import os, signal, struct, sys, time
def report(number, _frame):
    os.write(1, struct.pack("=id", number, time.monotonic()))
for number in sys.argv[1:]:
    signal.signal(int(number), report)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
while os.read(0, 1):
    pass
"""
"""Program of the witness. Its standard input is closed when the launcher ends."""
_REPORT: Final = struct.Struct("=id")
_WAIT_SECONDS: Final = 1.0
"""Longest wait for the report of the witness; a signal to the launcher alone is delayed as long."""
_SAME_SECONDS: Final = 2.0
"""Largest age of a report of the same signal."""

SIGNALLED: Final = 128
"""Added to the number of a signal, the exit status of a process that it ended, as a shell reports it."""
ENDING: Final = frozenset((signal.SIGINT, signal.SIGTERM))
"""Signals that end the launcher once the job has ended."""


class SignalForwarder:
    """Receiver of the signals ``numbers`` that passes on to the job those that it does not have; a context manager.

    Once the job has ended, the signals of ``ENDING`` raise ``KeyboardInterrupt`` or ``SystemExit``, and others are dropped.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = numbers
        self._received = SimpleQueue[int | None]()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._witness = GroupWitness(self._numbers)
        self._previous = {number: signal.signal(number, self._receive) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._received.put(None)
        if self._thread is not None:
            self._thread.join()
        self._witness.close()

    def forward_to(self, child: subprocess.Popen[bytes]) -> None:
        """Pass on the signals received so far, which came before there was a job, and later ones."""
        self._child = child
        with suppress(Empty):
            while (early := self._received.get_nowait()) is not None:
                child.send_signal(early)
        self._thread = threading.Thread(target=self._forward, args=(child,), name="signals", daemon=True)
        self._thread.start()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None or self._child.returncode is None:
            self._received.put(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif number in ENDING:
            raise SystemExit(SIGNALLED + number)

    def _forward(self, child: subprocess.Popen[bytes]) -> None:
        # In a thread: the next signal would interrupt a handler that waits for the witness.
        while (number := self._received.get()) is not None:
            if not self._witness.saw(number, child.pid):
                child.send_signal(number)


class GroupWitness:
    """Child process that receives the signals ``numbers`` that this process receives with its whole process group."""

    def __init__(self, numbers: Collection[int]) -> None:
        self._reports: list[tuple[int, float]] = []
        self._process: subprocess.Popen[bytes] | None = None
        if not numbers:
            return
        command = [sys.executable, "-I", "-S", "-c", _WITNESS, *map(str, numbers)]
        # The witness inherits the mask: a signal during its start waits until it can report.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:  # too many processes
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """End the child process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()  # it may be stopped
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def saw(self, number: int, child: int) -> bool:
        """Return whether the signal ``number``, received just now, has also reached the process ``child``, as far as known.

        To be called once for each signal.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while _is_in_group(child):
            oldest = time.monotonic() - _SAME_SECONDS
            reports = [report for report in self._reports if report[1] >= oldest]
            seen = next((report for report in reports if report[0] == number), None)
            if seen is not None:
                reports.remove(seen)
            self._reports = reports
            if seen is not None:
                return True
            if not self._read(deadline - time.monotonic()):
                return False
        return False

    def _read(self, seconds: float) -> bool:
        """Wait for a report, and read it. Return whether there was one."""
        if self._process is None or self._process.stdout is None:
            return False
        handle = self._process.stdout.fileno()
        if not select.select([handle], [], [], max(seconds, 0))[0]:
            return False
        data = os.read(handle, _REPORT.size)
        if len(data) < _REPORT.size:
            return False  # it was killed
        self._reports.append(_REPORT.unpack(data))
        return True


def _is_in_group(child: int) -> bool:
    # Some programs, such as ``timeout`` and ``setsid``, leave the group of the process that starts them.
    with suppress(OSError):
        return os.getpgid(child) == os.getpgrp()
    return False
