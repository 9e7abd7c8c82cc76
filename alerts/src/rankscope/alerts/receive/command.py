"""``rankscope alerts serve``. What needs an extra is imported when it is used."""

from __future__ import annotations

from pathlib import Path

import click

from rankscope.alerts.output import log_options
from rankscope.base.logs import LogFormat, LogLevel, daemon_log
from rankscope.base.options import ListenAddress, link_url


@click.command(
    short_help="Receive, show and forward alerts of Alertmanager and Grafana.",
    epilog="""
\b
Examples:
  rankscope alerts serve                        print what arrives
  rankscope alerts serve --config alerts.toml   enrich, forward, act
  rankscope alerts serve --config alerts.toml --listen :9099 --runs /runs

Exit status: 0 ended by SIGTERM or Ctrl-C, 2 usage, 3 a file, folder or address that cannot be used.
""",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="alerts.toml: credentials of senders, runs, targets, actions.",
)
@click.option("--listen", type=ListenAddress(), help="Address to listen on.  [default: 127.0.0.1:9099]")
@click.option(
    "--runs",
    multiple=True,
    metavar="ROOT",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run, or folder of runs, whose verdicts enrich alerts. Repeatable.",
)
@click.option("--dashboard-url", type=link_url, metavar="URL", help="Dashboard that alerts link to, http://host:8050.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of deliveries and messages.  [default: with --config, ~/.local/state/rankscope/receiver]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Append every delivery to this file (JSON Lines).")
@log_options
def serve(
    *,
    config: Path | None,
    listen: tuple[str, int] | None,
    runs: tuple[Path, ...],
    dashboard_url: str | None,
    state: Path | None,
    out: Path | None,
    log_level: LogLevel,
    log_format: LogFormat | None,
) -> None:
    """Receive webhooks of Alertmanager and Grafana: show, enrich, forward, act.

    \b
    POST /webhook      Alertmanager's payload, version 4, or Grafana's
    GET  /deliveries   the last deliveries as JSON
    GET  /metrics      counts, for Prometheus
    GET  /-/healthy    200 while it serves
    GET  /-/ready      200 while it can store deliveries

    Each alert is printed in one line. With --config or --state, accepted deliveries survive a killed process; without either
    they are kept in memory. Targets, actions, and an address that other machines can reach need credentials of senders in
    [receive]. SIGHUP reads the file again.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.receive.receiver import Receiver
    from rankscope.alerts.receive.receiver_settings import ReceiverSettings, receiver_settings

    def read() -> ReceiverSettings:
        return receiver_settings(config, listen=listen, runs=runs, dashboard_url=dashboard_url, state=state, out=out)

    with daemon_log(log_level, log_format):
        Receiver(read(), read_again=read).serve()
