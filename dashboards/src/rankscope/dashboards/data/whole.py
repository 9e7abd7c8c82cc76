"""Files that readers see as a whole, as they were or as they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rankscope.runs.errors import InputError

T = TypeVar("T")

_LITTLE_BYTES: Final = 32 << 20


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


def ended_silently(what: str, folder: Path) -> str:
    """Why a process that writes into ``folder`` may have ended without saying how: on a full disk it cannot say it."""
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_BYTES:
        return (
            f"{what} could not go on: the disk of the cache is full ({free / 2**20:.0f} MiB are left in {folder}); "
            f"make room there, or set XDG_CACHE_HOME to another folder"
        )
    return f"{what} ended without a word, as processes do that are killed for want of memory; the kernel's log tells of that"
