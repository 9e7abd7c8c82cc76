"""Memory that is left for the processes beside the server, and the memory that they use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_V2: Final = ("memory.max", "memory.current", "inactive_file")
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_left(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes left on this machine, or in this process' cgroup if it has less; ``None``: not known."""
    machine = _number(proc / "meminfo", r"^MemAvailable:\s+(\d+) kB")
    return min([*([] if machine is None else [1024 * machine]), *_left_in_cgroups(proc, cgroups)], default=None)


def used_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the memory of a process that the kernel cannot take back; 0 if the process has ended."""
    return 1024 * (_number(proc / str(pid) / "status", r"^RssAnon:\s+(\d+) kB") or 0)


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for number, controllers, path in lines:
        version_2 = number == "0"
        if not version_2 and "memory" not in controllers.split(","):
            continue
        root = cgroups if version_2 else cgroups / "memory"
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):  # in a container, the folders of the outer groups do not exist
                yield from _left_in(folder, *(_V2 if version_2 else _V1))


def _left_in(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    most, used = _number(folder / limit, r"^(\d+)$"), _number(folder / usage, r"^(\d+)$")
    if most is not None and used is not None:
        yield max(0, most - used + (_number(folder / "memory.stat", rf"^{reclaimable} (\d+)$") or 0))


def _number(file: Path, pattern: str) -> int | None:
    try:
        match = re.search(pattern, file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1])
