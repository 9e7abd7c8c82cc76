"""Where the outboxes of this user are. Needs no extra."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankscope.alerts.state_home import state_home

_SUFFIX: Final = ".outbox"


def outbox_file(state: Path) -> Path:
    """The outbox that belongs to a watcher's state file: beside it."""
    return state.with_name(state.name.removesuffix(".json") + _SUFFIX)


def outbox_files() -> list[Path]:
    """All outboxes among what is kept, and in the folders there (the receiver's), by name."""
    folder = state_home()
    try:
        return sorted(path for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}{_SUFFIX}"))
    except OSError:
        return []
