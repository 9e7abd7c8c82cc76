"""Files that readers see as a whole, as they were or as they are."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from rankscope.base.errors import InputError

T = TypeVar("T")


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and put it there at once. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(data)
    temporary.replace(path)


def read_json(path: Path, kind: type[T], what: str) -> T:
    """What ``path`` holds, such as ``what`` says ("the cached analysis"). Raises ``InputError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError) as error:  # not DecodeError alone: bytes that are no UTF-8 are another
        raise InputError(path, f"{what} cannot be read: {error}") from error
