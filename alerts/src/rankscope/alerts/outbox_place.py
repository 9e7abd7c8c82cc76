"""Where the outboxes of this user are. Needs no extra."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".outbox"


def outbox_file(state: Path) -> Path:
    """The outbox that belongs to a watcher's state file: beside it."""
    return state.with_name(state.name.removesuffix(".json") + _SUFFIX)


def outbox_files() -> list[Path]:
    """All outboxes under ``$XDG_STATE_HOME/rankscope`` and in the folders there (the receiver's), by name."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(base).expanduser() / "rankscope"
    try:
        return sorted(path for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}{_SUFFIX}"))
    except OSError:
        return []
