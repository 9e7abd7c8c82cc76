"""A row of a result: what was measured, what it may be. Measures nothing by itself."""

from __future__ import annotations


def budget(name: str, value: float, limit: float, *, at_least: bool = False) -> dict[str, object]:
    """``at_least``: the limit is the least it may be, not the most."""
    return {"name": name, "value": round(value, 6), "limit": limit, "ok": value >= limit if at_least else value <= limit}
