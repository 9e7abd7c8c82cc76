"""Files that readers see as a whole, as they were or as they are."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and put it there at once. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(data)
    temporary.replace(path)
