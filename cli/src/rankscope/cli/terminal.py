"""What every verb decides alike: paths that it reads, colours, width, the two formats."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, TextIO, TypeVar

import click
import msgspec

from rankscope.analysis.json_of import json_of
from rankscope.analysis.locations import local_path
from rankscope.base import options


class _LocalPath(click.Path):
    """Something on this machine's disks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse URLs, and nothing."""
        return super().convert(local_path(value), param, ctx)


INPUT_PATH: Final = _LocalPath(path_type=Path, readable=False)
"""Whether it can be read is found out by reading it: then the message and the exit status are ours."""

INPUT_PLACE: Final = click.Path(readable=False)
"""The same for what may be a URL, too."""

format_option = options.format_option("For people, or for programs.")


class Finite(click.FloatRange):
    """A number one can reckon with."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what no range refuses: nan."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is no {self.name}", param, ctx)


class _Price(Finite):
    """Money per hour."""

    name = "price"


_Command = TypeVar("_Command", bound=Callable[..., Any])


def price_options(help_text: str) -> Callable[[_Command], _Command]:
    """``--price-per-gpu-hour`` and ``--currency``."""

    def add(command: _Command) -> _Command:
        currency = click.option("--currency", default="USD", show_default=True, help="Currency of that price.")
        return click.option("--price-per-gpu-hour", type=_Price(0, 1_000_000), help=help_text)(currency(command))

    return add


def use_color(stream: IO[Any] | None = None) -> bool:
    """Colours only on a terminal, and never with NO_COLOR (https://no-color.org) set to something."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns to fill: the terminal's, at most 120, or 100 where there is none."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def print_json(result: object, stream: TextIO | None = None) -> None:
    """``--format json``, on standard output unless told otherwise: in UTF-8, whatever the locale is."""
    (stream or sys.stdout).buffer.write(msgspec.json.format(json_of(result), indent=2) + b"\n")
