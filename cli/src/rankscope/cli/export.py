"""``rankscope export``."""

from __future__ import annotations

import gzip
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from rankscope.alerts.output import progress_line
from rankscope.analysis.locations import location
from rankscope.analysis.perfetto.annotations import clock_sentence
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.result import ExportResult
from rankscope.analysis.perfetto.selection import MAX_EVENTS, Selection
from rankscope.analysis.perfetto.source import step_range
from rankscope.analysis.wording import counted, wrapped
from rankscope.base.errors import InputError
from rankscope.base.text import printable
from rankscope.cli.rank_list import RANKS
from rankscope.cli.terminal import INPUT_PLACE, format_option, print_json, width
from rankscope.runs.named import named_run
from rankscope.runs.paths import findings_file, run_file
from rankscope.runs.writer import replacing

_Write = Callable[[bytes], object]
_SMALL: Final = 1_000


class _Steps(click.ParamType[Any]):
    """``100:120``: from step 100 to step 119; ``100:``, ``:120`` and ``100`` as well."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, int | None]:
        """First step, and step after the last."""
        found = re.fullmatch(r"([0-9]{1,15})?(:)?([0-9]{1,15})?", str(value))
        if found is None or (found[1] is None and found[3] is None):
            self.fail(f"{value!r} is no range of steps such as 100:120, which is 100 to 119", param, ctx)
        first = None if found[1] is None else int(found[1])
        if found[2] is None:
            return int(value), int(value) + 1
        past = None if found[3] is None else int(found[3])
        if first is not None and past is not None and past <= first:
            self.fail(f"{value!r} has no step in it", param, ctx)
        return first, past


@click.command(
    epilog="""
\b
Examples:
  rankscope export RUN --perfetto out.json.gz
  rankscope export RUN --perfetto out.json.gz --steps 120:124 --ranks 0-7
  rankscope export traces/ --perfetto out.json.gz    Kineto traces, too
  rankscope export RUN --perfetto - | gzip >out.json.gz

Then open https://ui.perfetto.dev and drop the file onto the page: it is read in the browser and not sent anywhere.
"""
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=INPUT_PLACE)
@click.option(
    "--perfetto",
    "target",
    required=True,
    metavar="FILE",
    help="Write Chrome JSON to FILE, compressed if it ends in .gz; - is standard output.",
)
@click.option("--steps", type=_Steps(), help="Steps A to B - 1 only.  [default: all that fit]")
@click.option("--ranks", type=RANKS, help="These ranks only, such as 0,3-5.  [default: all]")
@click.option(
    "--raw/--no-raw",
    default=None,
    help="Merge in the raw traces that a run has kept.  [default: with --steps]",
)
@click.option("--no-verdict", is_flag=True, help="Without analysis: memory does not grow with the length of the run.")
@click.option(
    "--max-events",
    type=click.IntRange(_SMALL, 100_000_000),
    default=MAX_EVENTS,
    show_default=True,
    help="About so many events; a browser has trouble with more.",
)
@format_option
def export(
    paths: tuple[str, ...],
    *,
    target: str,
    steps: tuple[int | None, int | None] | None,
    ranks: list[int] | None,
    raw: bool | None,
    no_verdict: bool,
    max_events: int,
    format_: str,
) -> None:
    """All ranks on one corrected clock, for Perfetto: steps, phases, collectives, who waited for whom, the verdict on top.

    PATH is one run directory (its last attempt counts; RUN/attempts/000 names another), or Kineto traces (files, folders,
    patterns; also on s3:// and every other filesystem of fsspec) of one or many ranks. Where not everything fits, the
    latest steps around the last profile are exported, and what was left out is said.
    """
    first, past = steps or (None, None)
    selection = Selection(first, past, None if ranks is None else frozenset(ranks), max_events)
    _check_target(target, paths)
    with progress_line() as show, _output(target) as (write, size):

        def progress(what: str, done: int, of: int) -> None:
            show(f"{what}: {done} of {of}" if of > 1 else what)

        result = export_perfetto(paths, write, selection=selection, raw=raw, verdict=not no_verdict, progress=progress)
    result = msgspec.structs.replace(result, path=target, bytes=size())
    said = sys.stderr if target == "-" else sys.stdout
    if format_ == "json":
        print_json(result, said)
    else:
        click.echo(_text(result), file=said)


def _check_target(target: str, paths: Sequence[str]) -> None:
    """Before anything is read: what may have taken minutes is not to fail at its end."""
    if target == "-":
        if sys.stdout.isatty():
            raise click.BadParameter("standard output is a terminal; give a file", param_hint="--perfetto")
        return
    file = Path(target)
    if file.is_dir():
        raise click.BadParameter(f"{target!r} is a folder; give a file such as out.json.gz", param_hint="--perfetto")
    if file.exists() and not file.is_file():
        raise click.BadParameter(f"{target!r} is no regular file; give - for standard output", param_hint="--perfetto")
    if not file.parent.is_dir():
        raise InputError(file.parent, "no such folder")
    for path in map(location, paths):
        if isinstance(path, Path):
            _check_apart(target, file, path)


def _check_apart(target: str, file: Path, path: Path) -> None:
    """What is exported is neither written over nor joined."""
    # Of links in a circle, too, which ``resolve`` refuses.
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
        raise click.BadParameter(f"{target!r} {wrong}", param_hint="--perfetto")


@contextmanager
def _output(target: str) -> Iterator[tuple[_Write, Callable[[], int]]]:
    """What to write to, and the number of bytes that came of it. A file gets its name when all of it is there."""
    written = 0
    if target == "-":

        def count(data: bytes) -> None:
            nonlocal written
            sys.stdout.buffer.write(data)
            written += len(data)

        yield count, lambda: written
        return
    try:
        # A link is followed: it is not what should be replaced.
        with replacing(Path(os.path.realpath(target))) as file:
            if target.endswith(".gz"):
                # Without name and time, so that the same events are the same bytes.
                with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    yield packed.write, lambda: written
            else:
                yield file.write, lambda: written
            written = file.tell()
    except OSError as error:
        raise InputError(target, error.strerror or str(error)) from error


def _text(result: ExportResult) -> str:
    steps = f", {step_range(result.steps)}" if result.steps else ""
    where = "standard output" if result.path == "-" else result.path
    events = f"{counted(result.events, 'event')} of {counted(len(result.ranks), 'rank')}{steps}"
    lines = [
        f"{events} written to {where} ({result.bytes / 1e6:,.1f} MB).",
        clock_sentence(result.clock),
        *(f"Left out: {what}." for what in result.left_out),
        "Open https://ui.perfetto.dev and drop the file onto the page.",
    ]
    return printable("\n".join(part for line in lines for part in wrapped(line, width(), hanging="  ")))
