"""Time and memory of processes and all their descendants. Measures nothing by itself."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> set[int]:
    """Return the children of a process."""
    children: set[int] = set()
    with contextlib.suppress(OSError):  # a process or thread has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            children.update(map(int, (task / "children").read_text().split()))
    return children


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    collected = [pid]
    for item in collected:
        collected += children_of(item)
    return collected


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process tree by each process's own clock, in nanoseconds, plus ended children, in ticks."""
    total = 0.0
    for item in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{item}/stat").read_text().rpartition(")")[2].split()
            total += time.clock_gettime(~item << 3 | 2) + (int(fields[13]) + int(fields[14])) / TICKS
    return total


def ended_children_cpu_s() -> float:
    """Return the CPU time of the children that have ended, and of the descendants that these waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rss_bytes(pid: int) -> int:
    """Return the resident memory of the process tree; shared pages count for each process."""
    total = 0
    for item in tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{item}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


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
        with contextlib.suppress(OSError):  # the process has ended
            if os.fsencode(cache) in (process / "cmdline").read_bytes():
                total += pss_bytes(int(process.name))
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


def free_port() -> int:
    """Return a TCP port of this machine's loopback that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port
