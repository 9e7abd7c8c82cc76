"""How long something lasted, for people. Needs no extra."""

from __future__ import annotations


def span(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2.5 h``: as exact as a wait need be told."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
