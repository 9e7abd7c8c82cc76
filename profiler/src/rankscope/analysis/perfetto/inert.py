"""Sanitising of untrusted names and arguments: short, printable, and not deeply nested."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rankscope.base.text import one_line

MAX_NAME: Final = 200
"""Maximum characters of a name; those of C++ templates can be very long."""
MAX_TEXT: Final = 1000
"""Maximum characters of an argument."""
MAX_ITEMS: Final = 64
"""Maximum entries of a list or map."""
MAX_DEPTH: Final = 4
MAX_ARGS_BYTES: Final = 8192
"""Maximum size of the encoded arguments of one event."""

_INT64: Final = 2**63

_encode = msgspec.json.Encoder().encode


def inert(text: str, limit: int = MAX_NAME) -> str:
    """Return ``text`` without control characters and lone surrogates, cut to ``limit`` characters."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return one_line(text)


def inert_args(args: dict[str, Any]) -> bytes:
    """Encode the arguments of an event as JSON; above ``MAX_ARGS_BYTES`` they are replaced by a note of their size."""
    data = _encode(_inert_value(args, MAX_DEPTH))
    return data if len(data) <= MAX_ARGS_BYTES else _encode({"left out": f"{len(data)} bytes of arguments"})


def _inert_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return inert(value, MAX_TEXT)
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)[:MAX_NAME]
    if not depth:
        return "…"
    if isinstance(value, dict):
        pairs = list(value.items())
        shown = {inert(str(key)): _inert_value(item, depth - 1) for key, item in pairs[:MAX_ITEMS]}
        return shown if len(pairs) <= MAX_ITEMS else {**shown, "…": f"{len(pairs) - MAX_ITEMS} more"}
    items = [_inert_value(item, depth - 1) for item in value[:MAX_ITEMS]]
    return items if len(value) <= MAX_ITEMS else [*items, f"… {len(value) - MAX_ITEMS} more"]
