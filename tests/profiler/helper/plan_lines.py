"""Lines of the plan of windows."""

from __future__ import annotations

import msgspec

from rankscope.runs.records import PlannedWindow


def line(first: int, steps: int = 2, *, ranks: list[int] | None = None, capture: bool = False) -> bytes:
    """Return a line of the plan."""
    window = PlannedWindow(first=first, steps=steps, reason="capture" if capture else "schedule", ranks=ranks, chosen_unix_ns=1)
    return msgspec.json.encode(window) + b"\n"
