"""``--config FILE``: the long options as TOML keys, ``web.listen-address = [":9838"]`` or the same under ``[web]``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from rankscope.exporter.errors import ExporterInputError
from rankscope.exporter.options import SectionOption

_MAX_BYTES: Final = 1024 * 1024
_NOT_IN_FILE: Final = frozenset({"config", "once", "forget"})
"""Options that choose an action of this run rather than a setting."""


def load_config(path: Path, ctx: click.Context) -> dict[str, Any]:
    """Read the configuration file; return its values by parameter name, for ``ctx.default_map``.

    Raises:
        ExporterInputError: the file cannot be read, is not TOML, or has an unknown or duplicate key or an invalid value.
    """
    options: dict[str, SectionOption] = {}
    for param in ctx.command.params:
        if isinstance(param, SectionOption) and param.key not in _NOT_IN_FILE:
            options |= {name.removeprefix("--"): param for name in param.opts if name.startswith("--")}
    values: dict[str, Any] = {}
    try:
        table = tomllib.loads(read_text(path, "configuration", "--config"))
    except tomllib.TOMLDecodeError as error:
        raise ExporterInputError(f"{path}: not TOML: {error}") from error
    for key, value in _flat(table):
        option = options.get(key)
        if option is None:
            raise ExporterInputError(f"{path}: unknown key {key!r}; {_hint(key, options)}")
        assert option.name is not None
        if option.name in values:
            raise ExporterInputError(f"{path}: {key!r} sets the same option as another key; keep one of them")
        values[option.name] = _value(path, key, value, option, ctx)
    return values


def read_text(path: Path, what: str, option: str) -> str:
    """Return the text of a file that the user named with ``option``; ``what`` it should be.

    Raises ``ExporterInputError`` if it cannot be read, is larger than 1 MiB, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ExporterInputError(f"{path}: larger than 1 MiB; this is no {what}")
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except OSError as error:
        raise ExporterInputError(f"{path}: {error.strerror or error}; name another file with {option}") from error
    except UnicodeDecodeError as error:
        raise ExporterInputError(f"{path}: byte {error.start} is not UTF-8; save this {what} as UTF-8") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _hint(key: str, options: Mapping[str, SectionOption]) -> str:
    section, _, name = key.partition(".")
    if section == "collector":  # the common prefix would make all names look similar
        names = [one.removeprefix("collector.") for one in options if one.startswith("collector.")]
        close = difflib.get_close_matches(name, names, n=1)
        return f"did you mean 'collector.{close[0]}'?" if close else f"there is no collector {name!r}, but: {', '.join(names)}"
    near = difflib.get_close_matches(key, [*options, *(name.replace("-", "_") for name in options)], n=1)
    if near:
        return f"did you mean {near[0].replace('_', '-')!r}?"
    return "keys are the long options of `rankscope exporter --help` without their dashes"


def _value(path: Path, key: str, value: Any, option: SectionOption, ctx: click.Context) -> Any:
    def wrong(wanted: str) -> ExporterInputError:
        return ExporterInputError(f"{path}: {key}: {value!r} is not {wanted}")

    if option.is_flag:
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    many = value if isinstance(value, list) else [value]
    if not option.multiple and isinstance(value, list):
        raise wrong("one value, but a list")
    texts: list[str] = []
    for one in many:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise wrong("text or a number")
        texts.append(str(one))
    given = texts if option.multiple else texts[0]
    try:
        option.type_cast_value(ctx, given)
    except click.BadParameter as error:
        raise ExporterInputError(f"{path}: {key}: {error.message.removesuffix('.')}") from error
    return given
