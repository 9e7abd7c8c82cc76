"""Where what outlives a process is kept, unless the operator says where. Needs no extra."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """``$XDG_STATE_HOME/rankscope`` (``~/.local/state`` when the variable is not set)."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "rankscope"
