"""Result of one check of ``rankscope doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckState = Literal["ok", "absent", "missing", "other", "unreadable"]


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check. ``missing``: rankscope needs it here. ``absent``: optional; ``detail`` has the consequences.

    Of files: ``other``: another version wrote it, and this one reads it; ``unreadable``: this version does not read it.
    """

    name: str
    state: CheckState
    detail: str
    fix: str | None = None
