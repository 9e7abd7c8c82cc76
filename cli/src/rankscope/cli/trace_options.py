"""Options of the commands that take Kineto traces."""

from __future__ import annotations

import re

import click


def _pattern(_context: click.Context, _option: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    """Compile the regular expression. Raises ``click.BadParameter`` if it is invalid or matches the empty text."""
    if value is None:
        return None
    try:
        pattern = re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error
    if pattern.search("") is not None:
        raise click.BadParameter(f"{value!r} finds the empty text, so every kernel would be communication")
    return pattern


pattern_option = click.option(
    "--communication-pattern",
    metavar="REGEX",
    callback=_pattern,
    help="Kernels of traces whose name this finds are communication, too: for a library that is not known by itself.",
)
cycle_option = click.option(
    "--cycle",
    type=click.IntRange(1),
    metavar="N",
    help="Take cycle N of the profiler's schedule, from 1, where ranks have traces of several (schedule(repeat=...)).  [default: "
    "the last that most ranks have]",
)
