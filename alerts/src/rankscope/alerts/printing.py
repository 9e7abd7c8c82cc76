"""Lines for whoever looks on: a full disk or a closed pipe under them must not end what they tell about."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from rankscope.alerts.events import plain


def print_line(line: str, *, err: bool = False) -> OSError | None:
    """Print a line at once; returns why that was not possible. Such a line is lost; the next one is tried again."""
    try:
        click.echo(line, err=err)
    except OSError as error:
        _drop_buffered(err=err)
        return error
    return None


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Takes what is being done; on a terminal it is one line of standard error, written over each time and gone in the end."""

    def write(text: str) -> None:
        with suppress(OSError):
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    if not sys.stderr.isatty():
        yield lambda _what: None
        return
    # A line that wraps could not be written over.
    longest = shutil.get_terminal_size().columns - 3
    try:
        yield lambda what: write(f"{plain(what)[:longest]} …")
    finally:
        write("")


def _drop_buffered(*, err: bool) -> None:
    """Forget what could not be written: kept, it would make the end of the process fail as well."""
    stream = sys.stderr if err else sys.stdout
    with suppress(OSError, ValueError):  # not a file, or closed: then nothing is kept either
        number = stream.fileno()
        kept = os.dup(number)
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            stream.flush()
        finally:
            os.dup2(kept, number)
            os.close(kept)
