"""Options and output common to all verbs: input paths, colours, width, and the two formats."""

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

from rankscope.analysis.result.text import json_of
from rankscope.analysis.trace.locations import local_path
from rankscope.base import options
from rankscope.base.text import one_line
from rankscope.runs.named import newest_run


class _LocalPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; reject URLs and the empty path."""
        return super().convert(local_path(value), param, ctx)


INPUT_PATH: Final = _LocalPath(path_type=Path, readable=False)
"""Type of a local input path. Reading checks the permissions, not click: this keeps our message and exit status."""

INPUT_PLACE: Final = click.Path(readable=False)
"""Type of an input path that may be a URL, too."""


def paths_or_newest(context: click.Context, _param: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``paths``; without any, the newest run of the default folder, which is reported on standard error.

    A callback of an argument. Raises ``InputError`` if there is no run.
    """
    if paths or context.resilient_parsing:
        return paths
    run = str(newest_run())
    click.echo(f"rankscope: no PATH is given, so this is the newest run, {one_line(run)}", err=True)
    return (run,)


format_option = options.format_option("Print text for people, or JSON for programs.")


class Finite(click.FloatRange):
    """Finite number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; reject nan, which no range rejects."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is no {self.name}", param, ctx)


class _Price(Finite):
    name = "price"


_Command = TypeVar("_Command", bound=Callable[..., Any])


def price_options(help_text: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds ``--price-per-gpu-hour`` and ``--currency``."""

    def add(command: _Command) -> _Command:
        currency = click.option("--currency", default="USD", show_default=True, help="Currency of that price.")
        return click.option("--price-per-gpu-hour", type=_Price(0, 1_000_000), help=help_text)(currency(command))

    return add


def use_color(stream: IO[Any] | None = None) -> bool:
    """Return whether to use colours: only on a terminal, and not if NO_COLOR (https://no-color.org) is set and not empty."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Return the number of columns to fill: the terminal's, at most 120, or 100 without a terminal."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def print_json(result: object, stream: TextIO | None = None) -> None:
    """Print ``result`` as JSON to ``stream`` (default: standard output), in UTF-8 with any locale."""
    (stream or sys.stdout).buffer.write(msgspec.json.format(json_of(result), indent=2) + b"\n")
