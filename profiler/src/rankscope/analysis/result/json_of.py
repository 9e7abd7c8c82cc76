"""Results as JSON, also with file names that are not valid UTF-8."""

from __future__ import annotations

from typing import Any

import msgspec


def json_of(result: object) -> bytes:
    """Encode a result as JSON in UTF-8; characters that UTF-8 cannot encode, as in undecodable file names, become ``?``."""
    try:
        return msgspec.json.encode(result)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(result)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value
