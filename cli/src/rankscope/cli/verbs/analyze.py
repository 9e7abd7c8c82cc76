"""``rankscope analyze``."""

from __future__ import annotations

import re

import click

from rankscope.analysis.collectives.traffic.links import StatedLink, parse_link
from rankscope.analysis.engine import analyze as run_analysis
from rankscope.cli.selection import STEPS
from rankscope.cli.terminal import INPUT_PLACE, format_option, paths_or_newest, price_options, print_json, use_color, width
from rankscope.cli.trace_options import cycle_option, engine_of, engine_options, pattern_option


@click.command(
    epilog="""
\b
Examples:
  rankscope analyze                            the newest run
  rankscope analyze runs/2026-11-20-bert
  rankscope analyze RUN --steps 100:200        these steps only
  rankscope analyze traces/                    Kineto traces, one per rank
  rankscope analyze 'traces/rank-*.json.gz' --format json | jq .verdict
  rankscope analyze s3://bucket/job-7/traces/  needs fsspec and s3fs
  rankscope analyze /shared/fr/                Flight Recorder dumps
  rankscope analyze /shared/inspector/         logs of NCCL Inspector
  rankscope analyze RUN --fail-on straggler    exit status 1 when there is one
  rankscope analyze RUN --link ib-ndr:8        eight NDR ports on each host
  rankscope analyze RUN --detail               all tables
  rankscope analyze traces/ --communication-pattern 'my_all_?reduce'
  rankscope analyze traces/ --engine ray       on all nodes of a Ray cluster
"""
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=INPUT_PLACE, callback=paths_or_newest)
@format_option
@price_options("Price the loss in money. Default: the price recorded with the run.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="NAME[:PORTS]",
    help="What the ranks communicate over, such as nvlink4, pcie5, ib-ndr:8 (eight ports on each host) or eth-100: collectives "
    "are compared with what it gives. Once for inside a host, once for between hosts. Default: by the GPUs' names, inside a "
    "host only.",
)
@pattern_option
@click.option("--steps", type=STEPS, help="Judge only steps A to B - 1 of a run.  [default: all]")
@cycle_option
@click.option(
    "--detail",
    is_flag=True,
    help="Print all tables: ranks, hosts, waits, collectives, memory and where the time goes; of traces also streams, copies, "
    "launches and contention.",
)
@engine_options
@click.option(
    "--fail-on",
    multiple=True,
    metavar="KIND",
    help="Exit with status 1 when the verdict is of this kind. May be given several times.",
)
def analyze(
    *,
    paths: tuple[str, ...],
    format_: str,
    price_per_gpu_hour: float | None,
    currency: str,
    links: tuple[str, ...],
    communication_pattern: re.Pattern[str] | None,
    steps: tuple[int | None, int | None] | None,
    cycle: int | None,
    detail: bool,
    engine: str,
    address: str | None,
    workers: int | None,
    fail_on: tuple[str, ...],
) -> int:
    """Name the rank that makes the others wait, why, what it costs and what to do next.

    PATH is one run directory (its last attempt counts; RUN/attempts/000 names another), or Kineto traces (files, folders,
    patterns; plain, gzip or Zstandard; also on s3:// and every other filesystem of fsspec) of one or many ranks, the Flight
    Recorder dumps of a job that trains with TORCH_NCCL_ENABLE_TIMING=1, or the logs of its NCCL Inspector plugin; without PATH
    the newest run in rankscope-runs. "No straggler" and "not enough data" are answers, too, and come with exit status 0.
    """
    _check_kinds(fail_on)
    analysis = run_analysis(
        paths,
        price_per_gpu_hour=price_per_gpu_hour,
        currency=currency,
        links=_parse_links(links),
        communication_pattern=communication_pattern,
        steps=steps,
        cycle=cycle,
        detail=detail,
        engine=engine_of(engine, address, workers),
    )
    if format_ == "json":
        print_json(analysis)
    else:
        # Imported only for text output: JSON output starts faster without it.
        from rankscope.analysis.report.terminal import render_text

        click.echo(render_text(analysis, width=width(), color=use_color(), detail=detail), color=True)
    return 1 if analysis.verdict.kind in fail_on else 0


def _parse_links(links: tuple[str, ...]) -> list[StatedLink]:
    parsed_links: list[StatedLink] = []
    for text in links:
        try:
            link_option = parse_link(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--link") from error
        if any(link_option.link.scope == other.link.scope for other in parsed_links):
            where = "inside a host" if link_option.link.scope == "host" else "between hosts"
            raise click.BadParameter(f"{text!r}: a second link {where}; name one", param_hint="--link")
        parsed_links.append(link_option)
    return parsed_links


def _check_kinds(kinds: tuple[str, ...]) -> None:
    from typing import get_args

    from rankscope.analysis.result.analysis import Kind

    for kind in kinds:
        if kind not in get_args(Kind):
            raise click.BadParameter(
                f"{kind!r} is no kind of verdict; there are {', '.join(get_args(Kind))}", param_hint="--fail-on"
            )
