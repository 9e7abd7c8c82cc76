"""Memory of processes and all below them. Measures nothing by itself."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size of the tree: shared pages count once."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text(), re.MULTILINE)
            total += 1024 * int(match[1]) if match else 0
    return total


def peak_rss_bytes(pid: int) -> int:
    """The most memory one process has had so far."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def bytes_beside(cache: Path) -> int:
    """Memory of what works things out or follows runs beside the server: all processes that are told of this cache."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told_of_it = os.fsencode(cache) in (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        total += pss_bytes(int(process.name)) if told_of_it else 0
    return total


@contextmanager
def peak_beside(cache: Path) -> Iterator[list[int]]:
    """The most of it meanwhile, looked at twice a second."""
    peak = [0]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.5):
            peak[0] = max(peak[0], bytes_beside(cache))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        done.set()
        looking.join()
