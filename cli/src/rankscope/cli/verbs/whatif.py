"""``rankscope whatif``."""

from __future__ import annotations

import re

import click

from rankscope.analysis.whatif.whatif_of_paths import whatif as ask
from rankscope.analysis.whatif.whatif_terminal import render_text
from rankscope.cli.terminal import INPUT_PLACE, format_option, paths_or_newest, price_options, print_json, use_color, width
from rankscope.cli.trace_options import cycle_option, engine_of, engine_options, pattern_option


@click.command(
    epilog="""
\b
Examples:
  rankscope whatif runs/2026-11-20-bert
  rankscope whatif trace-job.parquet --price-per-gpu-hour 2.50
  rankscope whatif RUN --format json | jq '.by_rank[0]'
"""
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=INPUT_PLACE, callback=paths_or_newest)
@format_option
@price_options("Price the loss in money. Default: the price recorded with the run.")
@pattern_option
@cycle_option
@engine_options
@click.option("--per-step", is_flag=True, help="Print each step's figures, too (JSON).")
def whatif(
    paths: tuple[str, ...],
    *,
    format_: str,
    price_per_gpu_hour: float | None,
    currency: str,
    communication_pattern: re.Pattern[str] | None,
    cycle: int | None,
    engine: str,
    address: str | None,
    workers: int | None,
    per_step: bool,
) -> None:
    """Estimate how fast a job would be without stragglers: in step time, GPU-hours and money.

    Plays the job on the graph of what waits for what: with no rank slower than usual, and with each rank, host, stage, operation,
    phase and cause alone made ideal, or alone left as it was.

    PATH is one run directory (its last attempt counts; RUN/attempts/000 names another); or Kineto traces of all ranks (files,
    folders, patterns; also on s3:// and every other filesystem of fsspec); or a Parquet file of traced operations
    (docs/whatif.md); without PATH the newest run in rankscope-runs. "Not enough data" is an answer, too, with exit status 0.
    """
    result = ask(
        paths,
        price_per_gpu_hour=price_per_gpu_hour,
        currency=currency,
        per_step=per_step,
        cycle=cycle,
        communication_pattern=communication_pattern,
        engine=engine_of(engine, address, workers),
    )
    if format_ == "json":
        print_json(result)
    else:
        click.echo(render_text(result, width=width(), color=use_color()), color=True)
