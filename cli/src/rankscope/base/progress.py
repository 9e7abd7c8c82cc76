"""Progress of a command: one line of a terminal that shows the present activity."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from rankscope.base.text import one_line


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current activity in one line of standard error, which is cleared at the end.

    The function does nothing when standard error is not a terminal.
    """

    def write(text: str) -> None:
        with suppress(OSError):
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    if not sys.stderr.isatty():
        yield lambda _activity: None
        return
    # A wrapped line cannot be overwritten.
    longest = shutil.get_terminal_size().columns - 3
    try:
        yield lambda text: write(f"{one_line(text)[:longest]} …")
    finally:
        write("")
