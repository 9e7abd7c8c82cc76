"""Configuration files of the operator: text within limits, and TOML. Errors are one line with their place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from rankscope.base.errors import InputError
from rankscope.base.regular_files import open_regular

MAX_BYTES: Final = 1 << 20


def read_config_text(path: Path) -> str:
    """Read a text file of at most 1 MiB. Raises ``InputError``, also for a pipe, which could block."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    if len(content) > MAX_BYTES:
        raise InputError(path, "larger than 1 MiB, so not a configuration file")
    try:
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise InputError(path, "not UTF-8", place=f"byte {error.start}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; see ``read_config_text``."""
    try:
        content = tomllib.loads(read_config_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(path, f"not TOML: {error}") from error
    if _has_nul(content):
        raise InputError(path, "a text contains \\u0000, which is not allowed")
    return content


def _has_nul(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value
