"""Output of a verb to a file or standard output, and its progress on a terminal."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from rankscope.base.atomic_files import replacing
from rankscope.base.errors import InputError
from rankscope.base.progress import progress_line
from rankscope.runs.named import named_run
from rankscope.runs.paths import findings_file, run_file

Write = Callable[[bytes | memoryview], object]


def check_target(target: str, option: str, example: str, *, binary: bool = True) -> Path | None:
    """Check the output target before anything is read: work of minutes must not fail at its end.

    Returns the file, or ``None`` for standard output (``-``). Raises ``click.BadParameter`` for ``option``, also if the output is
    ``binary`` and standard output is a terminal. Raises ``InputError`` if the target's folder does not exist.
    """
    if target == "-":
        if binary and sys.stdout.isatty():
            raise click.BadParameter("standard output is a terminal; give a file", param_hint=option)
        return None
    file = Path(target)
    if file.is_dir():
        raise click.BadParameter(f"{target!r} is a folder; give a file such as {example}", param_hint=option)
    if file.exists() and not file.is_file():
        raise click.BadParameter(f"{target!r} is no regular file; give - for standard output", param_hint=option)
    if not file.parent.is_dir():
        raise InputError(file.parent, "no such folder")
    return file


def check_apart(target: str, file: Path, path: Path, option: str) -> None:
    """Raise ``click.BadParameter`` if the output would replace the input at ``path``, or become a part of it."""
    # ``realpath`` also accepts links in a cycle, for which ``resolve`` raises.
    run = named_run(path)
    real, folder = Path(os.path.realpath(file)), Path(os.path.realpath(path if run is None else run.path))
    wrong = None
    if folder.is_dir() and folder in real.parents:
        if run is None:
            wrong = f"lies in {str(path)!r} and would be taken for one of its traces"
        elif real.parent != folder or real in (run_file(folder), findings_file(folder)):
            wrong = "is a place of the run's own files"
    elif file.exists() and path.exists() and file.samefile(path):
        wrong = "is what is to be exported"
    if wrong is not None:
        raise click.BadParameter(f"{target!r} {wrong}", param_hint=option)


@contextmanager
def output(target: str) -> Iterator[tuple[Write, Callable[[], int]]]:
    """Yield a function that writes, and one that returns the number of bytes written. A file gets its name when complete."""
    written = 0
    if target == "-":

        def count(data: bytes | memoryview) -> None:
            nonlocal written
            sys.stdout.buffer.write(data)
            written += len(data)

        yield count, lambda: written
        return
    try:
        # Follow a link: its target is replaced, not the link.
        with replacing(os.path.realpath(target), shared=True) as file:
            if target.endswith(".gz"):
                # Without name and time, so that the same events give the same bytes.
                with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    yield packed.write, lambda: written
            else:
                yield file.write, lambda: written
            written = file.tell()
    except OSError as error:
        raise InputError(target, error.strerror or str(error)) from error


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows an activity, the number of parts done and their total; on a terminal only."""
    with progress_line() as show:
        yield lambda activity, done, total: show(f"{activity}: {done} of {total}" if total > 1 else activity)
