"""Row of a benchmark's result: a measured value and its limit. Measures nothing by itself."""

from __future__ import annotations


def budget(name: str, value: float, limit: float, *, at_least: bool = False) -> dict[str, object]:
    """Return a row of the result. ``at_least``: the limit is a minimum, not a maximum."""
    return {"name": name, "value": round(value, 6), "limit": limit, "ok": value >= limit if at_least else value <= limit}
