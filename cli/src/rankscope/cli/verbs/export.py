"""``rankscope export``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.export_result import ExportResult, clock_sentence
from rankscope.analysis.perfetto.selection import MAX_EVENTS, Selection
from rankscope.analysis.result.text import counted, size, wrapped
from rankscope.analysis.trace.locations import location
from rankscope.base.text import printable, step_range
from rankscope.cli.output_file import check_apart, check_target, output, progress
from rankscope.cli.selection import RANKS, STEPS
from rankscope.cli.terminal import INPUT_PLACE, format_option, print_json, width
from rankscope.cli.trace_options import cycle_option

_SMALL: Final = 1_000


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
@click.option("--steps", type=STEPS, help="Export only steps A to B - 1.  [default: all that fit]")
@click.option("--ranks", type=RANKS, help="Export only these ranks, such as 0,3-5.  [default: all]")
@cycle_option
@click.option(
    "--raw/--no-raw",
    default=None,
    help="Merge in the raw traces that a run has kept.  [default: with --steps]",
)
@click.option("--no-verdict", is_flag=True, help="Skip the analysis: memory then does not grow with the length of the run.")
@click.option(
    "--max-events",
    type=click.IntRange(_SMALL, 100_000_000),
    default=MAX_EVENTS,
    show_default=True,
    help="Export at most about so many events; a browser has trouble with more.",
)
@format_option
def export(
    paths: tuple[str, ...],
    *,
    target: str,
    steps: tuple[int | None, int | None] | None,
    ranks: list[int] | None,
    cycle: int | None,
    raw: bool | None,
    no_verdict: bool,
    max_events: int,
    format_: str,
) -> None:
    """Write all ranks on one corrected clock, for Perfetto: steps, phases, collectives, waits, with the verdict on top.

    PATH is one run directory (its last attempt counts; RUN/attempts/000 names another), or Kineto traces (files, folders,
    patterns; also on s3:// and every other filesystem of fsspec) of one or many ranks. Where not everything fits, the
    first of the chosen steps are exported, else those around the last profile, and what was left out is listed.
    """
    selection = Selection(StepRange(*steps or ()), None if ranks is None else frozenset(ranks), max_events, cycle)
    _check_target(target, paths)
    with progress() as report, output(target) as (write, size):
        result = export_perfetto(paths, write, selection=selection, raw=raw, verdict=not no_verdict, progress=report)
    result = msgspec.structs.replace(result, path=target, bytes=size())
    destination = sys.stderr if target == "-" else sys.stdout
    if format_ == "json":
        print_json(result, destination)
    else:
        click.echo(_text(result), file=destination)


def _check_target(target: str, paths: Sequence[str]) -> None:
    """Check the target before anything is read: an export of minutes must not fail at its end."""
    file = check_target(target, "--perfetto", "out.json.gz")
    if file is None:
        return
    for path in map(location, paths):
        if isinstance(path, Path):
            check_apart(target, file, path, "--perfetto")


def _text(result: ExportResult) -> str:
    steps = f", {step_range(result.steps)}" if result.steps else ""
    where = "standard output" if result.path == "-" else result.path
    events = f"{counted(result.events, 'event')} of {counted(len(result.ranks), 'rank')}{steps}"
    lines = [
        f"{events} written to {where} ({size(result.bytes)}).",
        clock_sentence(result.clock),
        *(f"Left out: {part}." for part in result.left_out),
        "Open https://ui.perfetto.dev and drop the file onto the page.",
    ]
    return printable("\n".join(part for line in lines for part in wrapped(line, width(), hanging="  ")))
