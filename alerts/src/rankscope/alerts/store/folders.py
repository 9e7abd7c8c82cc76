"""Folders that hold a store, and its file name. Loads no SQLite, for commands that only name them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

STORE_FILE: Final = "alerts.sqlite"


def state_home() -> Path:
    """``$XDG_STATE_HOME/rankscope`` (``~/.local/state/rankscope`` when the variable is not set)."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "rankscope"


def watcher_state(watched: Path) -> Path:
    """The default state folder of the watcher of ``watched``, a run or a folder of runs."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(watched))).hexdigest()[:16]
    return state_home() / f"watch-{name}"


def receiver_state() -> Path:
    """The default state folder of the receiver."""
    return state_home() / "receiver"


def default_folders() -> list[Path]:
    """All state folders of this user that hold a store, by name."""
    try:
        return sorted(path.parent for path in state_home().glob(f"*/{STORE_FILE}"))
    except OSError:
        return []
