"""``rankscope analyze``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec

from rankscope.analysis.engine import analyze as run_analysis
from rankscope.analysis.render import render_text
from rankscope.cli.terminal import PRICE, format_option, use_color, width


@click.command(
    epilog="""
\b
Examples:
  rankscope analyze runs/2026-11-20-bert
  rankscope analyze traces/                    Kineto traces, one per rank
  rankscope analyze 'traces/rank-*.json.gz' --format json | jq .verdict
  rankscope analyze RUN --fail-on straggler    exit status 1 when there is one
"""
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@format_option
@click.option(
    "--price-per-gpu-hour",
    type=PRICE,
    help="Price the loss in money. Default: the price recorded with the run.",
)
@click.option("--currency", default="USD", show_default=True, help="Currency of that price.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="KIND",
    help="Exit with status 1 when the verdict is of this kind. May be given several times.",
)
def analyze(
    paths: tuple[Path, ...], output_format: str, price_per_gpu_hour: float | None, currency: str, fail_on: tuple[str, ...]
) -> int:
    """Say which rank makes everybody else wait, why, what it costs and what to do next.

    PATH is one run directory, or Kineto traces (files, folders, patterns) of one or many ranks. "No straggler" and "not
    enough data" are answers, too, and come with exit status 0.
    """
    _check_kinds(fail_on)
    workers = len(os.sched_getaffinity(0))
    analysis = run_analysis(paths, price_per_gpu_hour=price_per_gpu_hour, currency=currency, workers=workers)
    if output_format == "json":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(analysis), indent=2) + b"\n")
    else:
        click.echo(render_text(analysis, width=width(), color=use_color()), color=True)
    return 1 if analysis.verdict.kind in fail_on else 0


def _check_kinds(kinds: tuple[str, ...]) -> None:
    from typing import get_args

    from rankscope.analysis.result import Kind

    for kind in kinds:
        if kind not in get_args(Kind):
            raise click.BadParameter(
                f"{kind!r} is no kind of verdict; there are {', '.join(get_args(Kind))}", param_hint="--fail-on"
            )
