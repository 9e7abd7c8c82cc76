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
    """All outboxes under ``$XDG_STATE_HOME/rankscope``, by name."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(base).expanduser() / "rankscope"
    try:
        return sorted(entry for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))
    except OSError:
        return []
