"""``rankscope alerts serve``. What needs an extra is imported when it is used."""

from __future__ import annotations

from pathlib import Path

import click

from rankscope.base.options import ListenAddress, link_url


@click.command(
    epilog="""
\b
Examples:
  rankscope alerts serve                        show what arrives here
  rankscope alerts serve --config alerts.toml   enrich, pass on, act
  rankscope alerts serve --config alerts.toml --listen :9099 --runs /runs

Exit status: 0 ended by SIGTERM or Ctrl-C, 2 usage, 3 a file, folder or address that cannot be had.
"""
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="alerts.toml: who may send, which runs, where alerts go on to, what may be asked of runs.",
)
@click.option("--listen", type=ListenAddress(), help="Where to listen.  [default: 127.0.0.1:9099]")
@click.option(
    "--runs",
    multiple=True,
    metavar="ROOT",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run, or folder of runs, that alerts are enriched from. Repeatable.",
)
@click.option("--dashboard-url", type=link_url, metavar="URL", help="Dashboard that alerts link to, http://host:8050.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for what was accepted and has to be sent.  [default: with --config, ~/.local/state/rankscope/receiver]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Append every delivery to this file (JSON Lines).")
def serve(
    *,
    config: Path | None,
    listen: tuple[str, int] | None,
    runs: tuple[Path, ...],
    dashboard_url: str | None,
    state: Path | None,
    out: Path | None,
) -> None:
    """Receive webhooks of Alertmanager and Grafana: show, enrich, pass on, act.

    \b
    POST /webhook      Alertmanager's payload, version 4, or Grafana's
    GET  /deliveries   the last deliveries as JSON
    GET  /metrics      counts, for Prometheus
    GET  /-/healthy    whether it serves
    GET  /-/ready      whether it can keep what arrives

    Each alert is shown in one line. Nothing that was accepted is lost when the process is killed, if there is a --config or a
    --state; without either it is kept in memory. On an address that other machines can reach, senders have to say who they are:
    the file says how.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.receive.setup import Receiving, settings

    chosen = settings(config, listen=listen, runs=runs, dashboard_url=dashboard_url, state=state, out=out)
    Receiving(chosen).serve()
