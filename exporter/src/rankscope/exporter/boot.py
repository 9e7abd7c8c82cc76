"""Which boot of the machine this is: what was written in another one speaks of processes and devices that are gone."""

from __future__ import annotations

from pathlib import Path


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's id of this boot; empty where it does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
