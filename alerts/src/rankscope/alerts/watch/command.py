"""``rankscope alerts watch``. What needs an extra is imported when it is used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import click

from rankscope.alerts.deliver.trial import targets_option
from rankscope.alerts.output import log_options
from rankscope.alerts.watch.options import budgets, judging_options
from rankscope.alerts.watch.signals import SignalHandlers, StoppedError
from rankscope.analysis.trace.locations import local_path
from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.http import host_port
from rankscope.base.logs import LogFormat, LogLevel, daemon_log
from rankscope.base.options import Duration, ListenAddress, format_option, http_url, link_url

if TYPE_CHECKING:
    from rankscope.alerts.deliver.target_file import Destinations
    from rankscope.alerts.watch.running_watcher import RunningWatcher

LAST_SCRAPE_S = 120.0
"""Longest wait for a last scrape after the followed run is over, if a client scrapes the watcher."""


logger = logging.getLogger(__name__)


def _without_user(_context: click.Context, _option: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    for url in urls:
        if "@" in urlsplit(http_url(url)).netloc:
            raise click.BadParameter("a password on the command line is visible to all users; use [[alertmanager]] in --config")
    return urls


@click.command(short_help="Follow one run or many, and send alerts about lasting problems.")
@click.argument("path", metavar="RUN|ROOT", callback=lambda _context, _option, value: local_path(value))
@click.option(
    "--alertmanager",
    multiple=True,
    callback=_without_user,
    metavar="URL",
    help="Alertmanager to send to, http://host:9093. Repeatable; with credentials or certificates: [[alertmanager]] in --config.",
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
@log_options
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
    log_level: LogLevel,
    log_format: LogFormat | None,
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

    SIGHUP reads --config again.

    Exit status: 0 done, 1 something could not be delivered or evaluated, 3 PATH cannot be read.
    """  # noqa: D301 - \b is for click
    with daemon_log(log_level, log_format), SignalHandlers() as signals:
        from rankscope.alerts.deliver.endpoint import Endpoint
        from rankscope.alerts.deliver.secret import Secret
        from rankscope.alerts.deliver.target_file import Destinations, load_destinations
        from rankscope.alerts.deliver.targets import webhook_target
        from rankscope.alerts.watch.ledger import FiringPolicy
        from rankscope.alerts.watch.liveness.monitor import Patience
        from rankscope.alerts.watch.pace import Pace
        from rankscope.alerts.watch.running_watcher import prepare
        from rankscope.alerts.watch.watcher_settings import WatcherSettings
        from rankscope.runs.named import runs_in

        def destinations() -> Destinations:
            configured = Destinations([], []) if config is None else load_destinations(config, absent=logger.warning)
            managers = [Endpoint(url=Secret(value=url)) for url in dict.fromkeys(alertmanager)]
            return Destinations(
                [*map(webhook_target, dict.fromkeys(webhook)), *configured.targets], [*managers, *configured.alertmanagers]
            )

        try:
            runs = runs_in(path)
        except OSError as error:
            raise InputError(path, error.strerror or str(error)) from error
        watch = prepare(
            path,
            destinations=destinations(),
            options=WatcherSettings(
                policy=FiringPolicy(fire_after or (1 if once else 3), resolve_after, least_firing),
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
            interruptible=signals.interruptible,
        )
        if not once:
            others = "" if runs == [path] else f", {len(runs)} run{'' if len(runs) == 1 else 's'} in it by now"
            logger.info("watching %s%s", path, others)
        if listen is not None:
            port = watch.watcher.page.serve(*listen)
            logger.info("metrics at http://%s/metrics", host_port(listen[0], port))
        undelivered: list[str] = []
        with closing(watch):
            try:
                follow(watch, signals, interval_s=interval, reread=None if config is None else destinations)
                undelivered = watch.finish(stopping=lambda: signals.stopping)
                with signals.interruptible():
                    scraped = listen is None or once or watch.watcher.page.finish(LAST_SCRAPE_S)
                if not scraped:
                    logger.warning("the end of the run was not scraped in time; silence WatcherSilent for this instance")
            except StoppedError:
                watch.watcher.save()
                ctx.exit(0)
        if undelivered:
            logger.error("not delivered to %s", ", ".join(undelivered))
        if undelivered or watch.watcher.has_problems:
            ctx.exit(1)


def follow(
    watch: RunningWatcher, signals: SignalHandlers, *, interval_s: float, reread: Callable[[], Destinations] | None
) -> None:
    """Evaluate until the followed run is over; once if ``watch.once``. ``reread`` returns the destinations after a SIGHUP.

    Raises ``StoppedError`` after SIGTERM or SIGINT.
    """
    watch.sender.start()
    began = time.monotonic()
    while not watch.watcher.evaluate() and not watch.once:
        # Analysis takes at most half of the time, however large the run becomes.
        due = time.monotonic() + max(interval_s, time.monotonic() - began)
        while (remaining := due - time.monotonic()) > 0:
            if signals.take_reload():
                _reload(watch, reread)
            if signals.stopping:
                raise StoppedError
            signals.wait(remaining)
        began = time.monotonic()


def _reload(watch: RunningWatcher, reread: Callable[[], Destinations] | None) -> None:
    if reread is None:
        logger.info("SIGHUP: there is no --config to read again")
        return
    try:
        destinations = reread()
    except (RankscopeError, click.ClickException) as error:
        logger.warning("the configuration stays as it was: %s", error)
        return
    watch.change(destinations)
    logger.info("the configuration was read again")
