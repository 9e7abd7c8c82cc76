"""What every verb decides alike about its output: colours, width, the two formats."""

from __future__ import annotations

import math
import os
import shutil
import sys
from typing import IO, Any

import click

format_option = click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)


class _Price(click.FloatRange):
    """Money per hour: a number one can reckon with."""

    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what no range refuses: nan."""
        price = super().convert(value, param, ctx)
        return price if math.isfinite(price) else self.fail(f"{value!r} is no price", param, ctx)


PRICE = _Price(0, 1_000_000)


def use_color(stream: IO[Any] | None = None) -> bool:
    """Colours only on a terminal, and never with NO_COLOR (https://no-color.org) set to something."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns to fill: the terminal's, at most 120, or 100 where there is none."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def printable(text: str) -> str:
    """Without control characters: what comes from a run may have been written by anybody."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
