"""``rankscope alerts watch``. What needs an extra is imported when it is used."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Literal

import click

from rankscope.alerts.deliver.trial import targets_option
from rankscope.alerts.output import report_line
from rankscope.alerts.watch.options import budgets, judging_options
from rankscope.analysis.trace.locations import local_path
from rankscope.base.errors import InputError
from rankscope.base.http import host_port
from rankscope.base.options import Duration, ListenAddress, format_option, http_url, link_url

LAST_SCRAPE_S = 120.0
"""Longest wait for a last scrape after the followed run is over, if a client scrapes the watcher."""


class _Stop(BaseException):
    """SIGTERM or SIGINT. Not an ``Exception``, so that no handler in between catches it."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    raise _Stop


@click.command()
@click.argument("path", metavar="RUN|ROOT", callback=lambda _context, _option, value: local_path(value))
@click.option(
    "--alertmanager", multiple=True, type=http_url, metavar="URL", help="Alertmanager to send to, http://host:9093. Repeatable."
)
@click.option(
    "--webhook",
    multiple=True,
    type=http_url,
    metavar="URL",
    envvar="RANKSCOPE_ALERTS_WEBHOOK",
    help="Webhook to send to (Alertmanager's payload, version 4). Repeatable; RANKSCOPE_ALERTS_WEBHOOK hides it from ps.",
)
@targets_option
@click.option(
    "--once",
    is_flag=True,
    help="Evaluate and deliver once, also a run that is over, and exit. Silent ranks are not detected.",
)
@click.option(
    "--interval", type=Duration(), metavar="DURATION", default="5s", show_default=True, help="Time between evaluations."
)
@click.option("--fire-after", type=click.IntRange(1), help="Consecutive evaluations to fire.  [default: 3; 1 with --once]")
@click.option("--resolve-after", type=click.IntRange(1), default=3, show_default=True, help="Consecutive evaluations to resolve.")
@judging_options
@click.option(
    "--ask-for-dumps/--no-ask-for-dumps",
    default=True,
    show_default=True,
    help="Request Flight Recorder dumps from the ranks of a stalled run, once.",
)
@click.option("--dashboard-url", type=link_url, metavar="URL", help="Dashboard that alerts link to, http://host:8050.")
@click.option("--runbook-url", type=link_url, metavar="URL", help="Base URL of the runbooks.  [default: alerts name the command]")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the store: alert states and messages.  [default: one per watched folder, in ~/.local/state/rankscope]",
)
@click.option(
    "--listen",
    type=ListenAddress(),
    help="Serve the watcher's own /metrics and /-/healthy.  [default: no server]",
)
@format_option("json: one object per line.")
@click.pass_context
def watch(
    ctx: click.Context,
    path: Path,
    *,
    alertmanager: tuple[str, ...],
    webhook: tuple[str, ...],
    config: Path | None,
    once: bool,
    interval: float,
    fire_after: int | None,
    resolve_after: int,
    least_firing: float,
    silent_after: float,
    silent_steps: float,
    budget: tuple[str, ...],
    ask_for_dumps: bool,
    dashboard_url: str | None,
    runbook_url: str | None,
    state: Path | None,
    listen: tuple[str, int] | None,
    format_: Literal["text", "json"],
) -> None:
    """Follow a run, or all runs in a folder, and send alerts about lasting problems.

    The end of a run resolves its alerts. For a single run, the command ends with the run. Without a destination it prints the
    alerts only.

    \b
    Examples:
      rankscope alerts watch runs/llama --alertmanager http://127.0.0.1:9093
      rankscope alerts watch runs --webhook https://hooks.example/T0/B0
      rankscope alerts watch runs --config alerts.toml
      rankscope alerts watch runs/llama --once --format json

    Exit status: 0 done, 1 something could not be delivered or evaluated, 3 PATH cannot be read.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.deliver.targets import load_targets, webhook_target
    from rankscope.alerts.watch.following import Pace
    from rankscope.alerts.watch.ledger import Policy
    from rankscope.alerts.watch.life import Patience
    from rankscope.alerts.watch.runs import discover
    from rankscope.alerts.watch.setup import prepare
    from rankscope.alerts.watch.watcher import Options

    try:
        runs = discover(path)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error
    configured = () if config is None else load_targets(config, absent=report_line)
    targets = (*map(webhook_target, dict.fromkeys(webhook)), *configured)
    watch = prepare(
        path,
        alertmanagers=alertmanager,
        targets=targets,
        options=Options(
            policy=Policy(fire_after or (1 if once else 3), resolve_after, least_firing),
            patience=Patience(silent_after_s=silent_after, silent_steps=silent_steps),
            budgets=budgets(budget),
            interval_s=interval,
            ask_for_dumps=ask_for_dumps,
            pace=Pace(),
            once=once,
            dashboard_url=dashboard_url,
            runbook_url=runbook_url,
        ),
        state=state,
        json_lines=format_ == "json",
    )
    if not once:
        there = "" if runs == [path] else f", {len(runs)} run{'' if len(runs) == 1 else 's'} in it by now"
        report_line(f"watching {path}{there}")
    if listen is not None:
        port = watch.watcher.page.serve(*listen)
        report_line(f"metrics at http://{host_port(listen[0], port)}/metrics")
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        watch.sender.start()
        began = time.monotonic()
        while not watch.watcher.evaluate() and not once:
            # Analysis takes at most half of the time, however large the run becomes.
            time.sleep(max(interval, time.monotonic() - began))
            began = time.monotonic()
        undelivered = watch.finish()
        if listen is not None and not once and not watch.watcher.page.finish(LAST_SCRAPE_S):
            report_line("the end of the run was not scraped in time; silence WatcherSilent for this instance")
    except _Stop:
        watch.watcher.save()
        ctx.exit(0)
    finally:
        watch.sender.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if undelivered:
        report_line(f"not delivered to {', '.join(undelivered)}")
    if undelivered or watch.watcher.has_problems:
        ctx.exit(1)
