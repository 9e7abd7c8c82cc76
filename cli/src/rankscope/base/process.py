"""Processes of this machine: ending with their parent, and telling one boot from another."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """In a new child: the kernel sends it signal ``number`` when its parent ends (Linux only; elsewhere nothing happens).

    The parent is the thread that started the child: one that ends early takes its children along.
    """
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_if_orphaned(parent: int) -> None:
    """End this process at once where ``parent`` ended before ``end_with_parent`` took effect."""
    if os.getppid() != parent:
        os._exit(1)


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's id of this boot; empty where it has none. Process ids and devices of another boot mean nothing here."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
