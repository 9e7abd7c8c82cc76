"""Conversion of the operator's TOML files to types, with errors in one line with their place. Needs no extra."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import msgspec.inspect

from rankscope.base.errors import InputError
from rankscope.base.text import did_you_mean, one_line

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([^\]]*)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_NONE_OF: Final = re.compile(r"Invalid enum value '(.*)'")
_OTHER_KIND: Final = re.compile(r"Expected `([^`]+)`(.*?)(?:, got `([^`]+)`)?")
_KINDS: Final = {
    "object": "a table",
    "array": "a list",
    "str": "a text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def validation_text(reason: str, place: str, kind: object, *, section: str = "") -> str:
    """Translate a validation error of ``msgspec`` for the author of the file.

    ``place`` is the path of the error (``.target[0].name``) within ``section``, which should be of type ``kind``.
    """
    reason = one_line(reason)
    allowed_types = list(_types_at(msgspec.inspect.type_info(kind), place))
    if unknown := _UNKNOWN.fullmatch(reason):
        settings = _settings(allowed_types)
        hint = did_you_mean(unknown[1], settings, otherwise=f"there are {', '.join(settings)}" if settings else "")
        return f"no such setting: {unknown[1]}{f'; {hint}' if hint else ''}"
    if missing := _MISSING.fullmatch(reason):
        return f"{missing[1]} is missing"
    if wrong := _NONE_OF.fullmatch(reason):
        values = [
            str(value) for type_ in allowed_types if isinstance(type_, msgspec.inspect.LiteralType) for value in type_.values
        ]
        hint = did_you_mean(wrong[1], values)
        return f"{wrong[1]!r} is none of {', '.join(values)}{f'; {hint}' if hint else ''}"
    if other := _OTHER_KIND.fullmatch(reason):
        wanted = " or ".join(_KINDS.get(type_, type_) for type_ in other[1].split(" | ") if type_ != "null")
        settings = _settings(allowed_types)
        of = f" with {', '.join(settings)}" if other[1].startswith("object") and settings else ""
        actual = f", found {_KINDS.get(other[3], other[3])}" if other[3] else ""
        return f"expected {wanted}{of}{other[2]}{actual}{_brackets(allowed_types, f'{section}{place}', other[3])}"
    return reason


def name_at(value: object, place: str) -> str:
    """Suffix with the ``name`` of the innermost table on the path ``place``, such as `` (oncall)``; empty without one."""
    name = ""
    for _, step in _steps(place):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        text = value.get("name") if isinstance(value, dict) else None
        if isinstance(text, str) and _NAME.fullmatch(text):
            name = f" ({text})"
    return name


def _brackets(allowed_types: list[Any], place: str, actual: str | None) -> str:
    """Hint on the ``[[…]]`` syntax when a list of tables was written as one table; empty otherwise."""
    tables = any(isinstance(type_, msgspec.inspect.ListType) and _settings([*_flat(type_.item_type)]) for type_ in allowed_types)
    return f"; begin each with [[{place.removeprefix('.')}]]" if tables and actual == "object" and place else ""


def _settings(allowed_types: Iterable[object]) -> list[str]:
    return [
        field.encode_name for type_ in allowed_types if isinstance(type_, msgspec.inspect.StructType) for field in type_.fields
    ]


def _types_at(node: Any, place: str) -> Iterator[Any]:
    """Yield the types that are allowed at ``place`` of ``node``."""
    nodes = list(_flat(node))
    for is_key, step in _steps(place):
        nodes = [inner for parent_type in nodes for outer in _inside(parent_type, step, is_key=is_key) for inner in _flat(outer)]
    yield from nodes


def _inside(node: Any, step: str, *, is_key: bool) -> Iterator[Any]:
    if isinstance(node, msgspec.inspect.StructType) and is_key:
        yield from (field.type for field in node.fields if field.encode_name == step)
    elif isinstance(node, msgspec.inspect.ListType):
        yield node.item_type
    elif isinstance(node, msgspec.inspect.DictType):
        yield node.value_type


def _flat(node: Any) -> Iterator[Any]:
    if isinstance(node, msgspec.inspect.UnionType):
        yield from node.types
    elif isinstance(node, msgspec.inspect.Metadata):
        yield from _flat(node.type)
    else:
        yield node


def _steps(place: str) -> Iterator[tuple[bool, str]]:
    """Split ``.target[0].name`` into keys and indices: ``(True, "target"), (False, "0"), (True, "name")``."""
    for match in _STEP.finditer(place):
        yield (True, match[1]) if match[1] is not None else (False, match[2])


_T = TypeVar("_T")


def converted(path: Path, value: object, kind: type[_T], *, section: str = "") -> _T:
    """Convert ``value``, read from ``section`` of the file, to ``kind``. Raises ``InputError`` with the place of the mistake."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`")
        where = f"{section}{place}".removeprefix(".") + name_at(value, place)
        raise InputError(path, validation_text(reason, place, kind, section=section), place=where or None) from error
