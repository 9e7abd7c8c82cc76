"""A TOML file of the operator's: read within bounds, and each mistake in it one line with its place. Needs no extra."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from rankscope.alerts.options import seconds
from rankscope.alerts.toml_mistakes import in_words, name_at
from rankscope.runs.errors import InputError
from rankscope.runs.segments import open_regular

MOST_BYTES: Final = 1 << 20

_T = TypeVar("_T")


def read_toml(path: Path) -> dict[str, Any]:
    """What is in it. Raises ``InputError``, also for a pipe, which nobody would wait for."""
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    if len(content) > MOST_BYTES:
        raise InputError(path, "more than 1 MiB: this is no file of settings")
    try:
        found = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise InputError(path, "not UTF-8", place=f"byte {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(path, f"not TOML: {error}") from error
    if _has_nul(found):
        raise InputError(path, "a text in it holds \\u0000, which no path, address or name may")
    return found


def _has_nul(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, (*value, *value.values())))
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def duration(text: str) -> float:
    """``5s``, ``10m``, ``4h`` in seconds. Raises ``ValueError``, also without a unit: in a file nobody sees what is meant."""
    try:
        found = seconds(text)
    except click.BadParameter as error:
        raise ValueError(error.message) from error
    if text[-1].isdigit():
        raise ValueError(f"{text!r} is a duration without its unit, as in {text}s or {text}m")
    return found


def converted(path: Path, value: object, kind: type[_T], *, section: str = "") -> _T:
    """``value``, which stands in ``section`` of the file, as ``kind``. Raises ``InputError`` with the place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`")
        where = f"{section}{place}".removeprefix(".") + name_at(value, place)
        raise InputError(path, in_words(reason, place, kind, section=section), place=where or None) from error
