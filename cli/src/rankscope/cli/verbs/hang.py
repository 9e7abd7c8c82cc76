"""``rankscope hang``."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from rankscope.analysis.hang.hang_result import HangKind
from rankscope.analysis.hang.hang_terminal import render_text
from rankscope.analysis.hang.ras.answers import WAIT_SECONDS
from rankscope.analysis.hang.ras.joining import analyze_job
from rankscope.cli.terminal import INPUT_PATH, Finite, format_option, print_json, use_color, width
from rankscope.runs.ras import split_address


def _ras_address(text: str) -> str:
    """Check ``HOST:PORT`` and return it as it is. Raises ``click.BadParameter``."""
    try:
        split_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


@click.command(
    epilog="""
\b
Examples:
  rankscope hang                               the job on this host, by NCCL
  rankscope capture RUN --flight-recorder      have a job that hangs dump
  rankscope hang RUN                           who hung it, and in which call
  rankscope hang /tmp/nccl_trace_rank_*        dumps that torch wrote itself
  rankscope hang dumps/ --format json | jq .culprits
  rankscope hang RUN --fail-on hang            exit status 1 when it hangs
"""
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=INPUT_PATH)
@click.option(
    "--ras",
    "address",
    type=_ras_address,
    metavar="HOST:PORT",
    help="Where the job's NCCL RAS listens.  [default: $NCCL_RAS_ADDR, else localhost:28028]",
)
@click.option(
    "--wait",
    type=Finite(0, 3600),
    default=WAIT_SECONDS,
    show_default=True,
    help="Seconds between the two questions to NCCL RAS; longer than a step.",
)
@format_option
@click.option(
    "--fail-on",
    multiple=True,
    metavar="KIND",
    type=click.Choice(list(get_args(HangKind))),
    help="Exit with status 1 when the result is of this kind (hang, no_hang, insufficient_data). May be given several times.",
)
def hang(*, paths: tuple[Path, ...], address: str | None, wait: float, format_: str, fail_on: tuple[str, ...]) -> int:
    """Name the ranks that hang a job: those that did not enter the collective in which the others wait.

    Without PATH, NCCL RAS (NCCL 2.24 and later) of the job on this host is asked, twice: which ranks do not answer, and which
    have launched fewer collectives while none moves. A run whose job is on this host is asked, too; else the answers that the
    recorder kept in the run count.

    PATH is a run directory (its last attempt with dumps counts; RUN/attempts/000 names another), or Flight Recorder dumps of NCCL
    or gloo (files, folders, patterns; pickles or JSON), with the rank at the end of their names. Dumps are read without running
    anything that is in them. "No hang seen" and "not enough data" are answers, too, and come with exit status 0.
    """
    report = analyze_job(paths, address=address, wait_s=wait)
    if format_ == "json":
        print_json(report)
    else:
        click.echo(render_text(report, width=width(), color=use_color()), color=True)
    return 1 if report.kind in fail_on else 0
