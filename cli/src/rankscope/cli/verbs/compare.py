"""``rankscope compare``."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from rankscope.analysis.compare.compare_result import Outcome
from rankscope.analysis.compare.compare_runs import MIN_CHANGE
from rankscope.analysis.compare.compare_runs import compare as compare_runs
from rankscope.analysis.compare.compare_terminal import render_compare
from rankscope.analysis.result.analysis import Cost
from rankscope.cli.selection import STEPS, share
from rankscope.cli.terminal import INPUT_PATH, format_option, price_options, print_json, use_color, width


@click.command(
    epilog="""
\b
Examples:
  rankscope compare runs/monday runs/tuesday
  rankscope compare runs/monday --at 5000      before and after step 5000
  rankscope compare runs/8 runs/16 runs/32     scaling efficiency
  rankscope compare BASE NEW --fail-on worse   status 1 when NEW is slower
  rankscope compare RUN/attempts/000 RUN       its first attempt, and its last
"""
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=INPUT_PATH)
@click.option(
    "--at", type=click.IntRange(0, 2**53), metavar="STEP", help="Compare one run's steps from this one on with those before."
)
@click.option("--steps", type=STEPS, help="Compare only steps A to B - 1 of each run.  [default: all]")
@click.option(
    "--min-change",
    type=share,
    default=MIN_CHANGE,
    help=f"Ignore changes below this share of the step time.  [default: {MIN_CHANGE:.0%}]",
)
@format_option
@price_options("Price the work in money. Default: the price recorded with each run.")
@click.option(
    "--fail-on",
    multiple=True,
    type=click.Choice([word for word in get_args(Outcome) if word != "untested"]),
    metavar="OUTCOME",
    help="Exit with status 1 when a comparison has this result: worse, better, mixed, same, undecided or "
    "insufficient_data. May be given several times.",
)
def compare(
    *,
    runs: tuple[Path, ...],
    at: int | None,
    steps: tuple[int | None, int | None] | None,
    min_change: float,
    format_: str,
    price_per_gpu_hour: float | None,
    currency: str,
    fail_on: tuple[str, ...],
) -> int:
    """Show what changed from the first RUN to the others: where in the step, on which rank, and whether it exceeds the noise.

    Runs of different world sizes are judged by their scaling efficiency instead. RUN is a run directory, of which the last
    attempt is meant, or the folder of one of its attempts. "The same", "undecided" and "not enough data" are answers, too, and
    come with exit status 0.
    """
    if at is not None and len(runs) > 1:
        raise click.UsageError("--at divides one run into before and after; there are several")
    if at is None and len(runs) == 1:
        raise click.UsageError("one RUN alone cannot be compared: name another RUN, or a step of this one (--at STEP)")
    gpu_hour = None if price_per_gpu_hour is None else Cost(amount=price_per_gpu_hour, currency=currency)
    result = compare_runs(runs, at=at, steps=steps, min_change=min_change, gpu_hour=gpu_hour)
    if fail_on and result.mode == "scaling":
        raise click.UsageError("--fail-on is for runs of one world size; these are of several")
    if format_ == "json":
        print_json(result)
    else:
        click.echo(render_compare(result, width=width(), color=use_color()), color=True)
    return 1 if any(comparison.outcome in fail_on for comparison in result.comparisons) else 0
