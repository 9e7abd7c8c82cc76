"""Memory of processes and all their descendants. Measures nothing by itself."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    collected = [pid]
    for item in collected:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{item}/task").iterdir():
                collected += [int(child) for child in (task / "children").read_text().split()]
    return collected


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of the process tree: shared pages count once."""
    total = 0
    for item in tree(pid):
        with contextlib.suppress(OSError):
            match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{item}/smaps_rollup").read_text(), re.MULTILINE)
            total += 1024 * int(match[1]) if match else 0
    return total


def peak_rss_bytes(pid: int) -> int:
    """Return the peak resident memory of one process so far."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def bytes_beside(cache: Path) -> int:
    """Return the memory of the processes that compute results or follow runs beside the server.

    These are all processes with this cache in their command lines.
    """
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told_of_it = os.fsencode(cache) in (process / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended
        total += pss_bytes(int(process.name)) if told_of_it else 0
    return total


@contextmanager
def peak_beside(cache: Path) -> Iterator[list[int]]:
    """Yield a list with the peak of ``bytes_beside`` until the context ends, sampled twice a second."""
    peak = [0]
    completed = threading.Event()

    def look() -> None:
        while not completed.wait(0.5):
            peak[0] = max(peak[0], bytes_beside(cache))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        completed.set()
        looking.join()
