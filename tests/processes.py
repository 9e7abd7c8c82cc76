"""Processes of this machine."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie that has not been reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
