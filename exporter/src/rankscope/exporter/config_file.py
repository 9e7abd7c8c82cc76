"""``--config FILE``: the long options as TOML keys, ``web.listen-address = [":9838"]`` or the same under ``[web]``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from rankscope.base.config_files import read_toml
from rankscope.base.errors import InputError
from rankscope.exporter.options import SectionOption

_NOT_IN_FILE: Final = frozenset({"config", "once", "forget"})
"""Options that choose an action of this run rather than a setting."""


def load_config(path: Path, ctx: click.Context) -> dict[str, Any]:
    """Read the configuration file; return its values by parameter name, for ``ctx.default_map``.

    Raises:
        InputError: the file cannot be read, is not TOML, or has an unknown or duplicate key or an invalid value.
    """
    options: dict[str, SectionOption] = {}
    for param in ctx.command.params:
        if isinstance(param, SectionOption) and param.key not in _NOT_IN_FILE:
            options |= {name.removeprefix("--"): param for name in param.opts if name.startswith("--")}
    values: dict[str, Any] = {}
    for key, value in _flat(read_toml(path)):
        option = options.get(key)
        if option is None:
            raise InputError(path, f"unknown key {key!r}; {_hint(key, options)}")
        assert option.name is not None
        if option.name in values:
            raise InputError(path, f"{key!r} sets the same option as another key; keep one of them")
        values[option.name] = _value(path, key, value, option, ctx)
    return values


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _hint(key: str, options: Mapping[str, SectionOption]) -> str:
    section, _, name = key.partition(".")
    if section == "collector":  # the common prefix would make all names look similar
        names = [option.removeprefix("collector.") for option in options if option.startswith("collector.")]
        close = difflib.get_close_matches(name, names, n=1)
        return f"did you mean 'collector.{close[0]}'?" if close else f"there is no collector {name!r}, but: {', '.join(names)}"
    close_matches = difflib.get_close_matches(key, [*options, *(name.replace("-", "_") for name in options)], n=1)
    if close_matches:
        return f"did you mean {close_matches[0].replace('_', '-')!r}?"
    return "keys are the long options of `rankscope exporter --help` without their dashes"


def _value(path: Path, key: str, value: Any, option: SectionOption, ctx: click.Context) -> Any:
    def wrong(wanted: str) -> InputError:
        return InputError(path, f"{value!r} is not {wanted}", place=key)

    if option.is_flag:
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    many = value if isinstance(value, list) else [value]
    if not option.multiple and isinstance(value, list):
        raise wrong("one value, but a list")
    texts: list[str] = []
    for item in many:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise wrong("text or a number")
        texts.append(str(item))
    option_value = texts if option.multiple else texts[0]
    try:
        option.type_cast_value(ctx, option_value)
    except click.BadParameter as error:
        raise InputError(path, error.message.removesuffix("."), place=key) from error
    return option_value
