"""Sizes on the command line: ``4GiB``, ``500 MB``, ``all``."""

from __future__ import annotations

import re
from typing import Any, Final

import click

_UNITS: Final = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_SMALLEST: Final = 1024 * 1024
"""Minimum size: with less, nothing works; records would be removed faster than they can be read."""


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Size in bytes; with ``or_all``, also ``all``, which is ``None``."""

    name = "size"

    def __init__(self, *, or_all: bool = False) -> None:
        self._or_all = or_all

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the size in bytes; ``None`` for ``all``."""
        text = str(value).strip().lower()
        if self._or_all and text == "all":
            return None
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text)
        if match is None or match[2] not in _UNITS:
            self.fail(f"{value!r} is no size; write 4GiB{', 500MB or all' if self._or_all else ' or 500MB'}", param, ctx)
        size = int(float(match[1]) * _UNITS[match[2]])
        if not _SMALLEST <= size < 2**60:
            self.fail(f"{value!r} is not between 1 MiB and 1 EiB", param, ctx)
        return size
