"""``rankscope hang``."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.render import render_text
from rankscope.analysis.hang.result import HangKind
from rankscope.cli.terminal import INPUT_PATH, format_option, print_json, use_color, width


@click.command(
    epilog="""
\b
Examples:
  rankscope capture RUN --flight-recorder      have a job that hangs dump
  rankscope hang RUN                           who hung it
  rankscope hang /tmp/nccl_trace_rank_*        dumps that torch wrote itself
  rankscope hang dumps/ --format json | jq .culprits
  rankscope hang RUN --fail-on hang            exit status 1 when it hangs
"""
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=INPUT_PATH)
@format_option
@click.option(
    "--fail-on",
    multiple=True,
    metavar="KIND",
    type=click.Choice(list(get_args(HangKind))),
    help="Exit with status 1 when the result is of this kind (hang, no_hang, insufficient_data). May be given several times.",
)
def hang(paths: tuple[Path, ...], format_: str, fail_on: tuple[str, ...]) -> int:
    """Say who hung the job: which ranks did not come to a collective that the others wait in.

    PATH is a run directory (its last attempt with dumps counts; RUN/attempts/000 names another), or Flight Recorder dumps of NCCL
    or gloo (files, folders, patterns; pickles or JSON), with the rank at the end of their names. Dumps are read without running
    anything that is in them. "No hang seen" and "not enough data" are answers, too, and come with exit status 0.
    """
    report = analyze_hang(paths)
    if format_ == "json":
        print_json(report)
    else:
        click.echo(render_text(report, width=width(), color=use_color()), color=True)
    return 1 if report.kind in fail_on else 0
