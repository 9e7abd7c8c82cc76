"""What is safe to show of names and arguments that anybody may have written: short, printable, and not nested deep."""

from __future__ import annotations

from typing import Any, Final

import msgspec

MAX_NAME: Final = 200
"""Characters of a name; those of C++ templates are endless."""
MAX_TEXT: Final = 1000
"""Characters of an argument."""
MAX_ITEMS: Final = 64
"""Entries of a list or map."""
MAX_DEPTH: Final = 4
MAX_ARGS_BYTES: Final = 8192
"""Arguments of one event, encoded."""

_INT64: Final = 2**63


def inert(text: str, limit: int = MAX_NAME) -> str:
    """``text`` without control characters and lone surrogates, cut to ``limit`` characters."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def inert_args(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an event; too many of them are replaced by a word about that."""
    kept: dict[str, Any] = _inert_value(args, MAX_DEPTH)
    size = len(msgspec.json.encode(kept))
    return kept if size <= MAX_ARGS_BYTES else {"left out": f"{size} bytes of arguments"}


def _inert_value(value: Any, depth: int) -> Any:
    match value:
        case str():
            return inert(value, MAX_TEXT)
        case bool() | None | float():
            return value
        case int():
            return value if -_INT64 <= value < _INT64 else str(value)[:MAX_NAME]
        case list() | tuple() if depth:
            kept = [_inert_value(item, depth - 1) for item in value[:MAX_ITEMS]]
            return kept if len(value) <= MAX_ITEMS else [*kept, f"… {len(value) - MAX_ITEMS} more"]
        case dict() if depth:
            pairs = list(value.items())
            shown = {inert(str(key)): _inert_value(item, depth - 1) for key, item in pairs[:MAX_ITEMS]}
            return shown if len(pairs) <= MAX_ITEMS else {**shown, "…": f"{len(pairs) - MAX_ITEMS} more"}
        case _:
            return "…"
