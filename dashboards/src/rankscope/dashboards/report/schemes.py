"""A figure in two colour schemes: the light one, and the differences of the dark one, so that large arrays are stored once."""

from __future__ import annotations

from typing import Any

Path = tuple[str | int, ...]
Change = tuple[Path, Any]


def differences(one: Any, other: Any, at: Path = ()) -> list[Change]:
    """Return the paths at which ``one`` (JSON) differs from ``other``, with ``other``'s values. The empty path is the root."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [change for key in one for change in differences(one[key], other[key], (*at, key))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = zip(one, other, strict=True)
        return [change for index, (was, now) in enumerate(pairs) for change in differences(was, now, (*at, index))]
    return [] if type(one) is type(other) and one == other else [(at, other)]
