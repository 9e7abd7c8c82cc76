"""``rankscope dashboard``. What needs the extra is imported when the command runs, so that its help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from rankscope.alerts.address import Address, bind, host_port, is_loopback
from rankscope.analysis.locations import local_path
from rankscope.runs.errors import MissingError

DEFAULT_PATH: Final = "rankscope-runs"
"""Where ``rankscope run`` records by default."""


@click.command(
    epilog="""
\b
Examples:
  rankscope dashboard                              all runs in rankscope-runs
  rankscope dashboard RUN --open                   one run, in the browser
  rankscope dashboard /shared/runs --listen 127.0.0.1:9000
"""
)
@click.argument("path", default=DEFAULT_PATH, callback=lambda _context, _option, value: local_path(value))
@click.option(
    "--listen", type=Address(), default="127.0.0.1:8050", show_default=True, help="Where to serve; port 0 for any free one."
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes that answer.")
@click.option("--open/--no-open", "open_browser", default=False, show_default=True, help="Open the page in the browser.")
@click.option("--allow-remote", is_flag=True, help="Serve to other machines, and under any host name. There is no login.")
def dashboard(path: Path, listen: tuple[str, int], workers: int, open_browser: bool, allow_remote: bool) -> None:
    """Serve the pages that show the evidence: verdict, bars, heat map, tables.

    PATH is a run directory, or a folder of run directories (default: rankscope-runs). Live runs are followed. Ctrl-C ends it.
    """
    host, port = listen
    if not is_loopback(host) and not allow_remote:
        raise click.UsageError(
            f"{host} can be reached from other machines and there is no login: whoever reaches the port can read every run. "
            "Listen on 127.0.0.1 and use an SSH tunnel or an authenticating proxy, or add --allow-remote if you mean it."
        )
    try:
        from rankscope.dashboards import server
        from rankscope.dashboards.app import create_app
        from rankscope.dashboards.config import DashboardConfig
        from rankscope.dashboards.data.disk import DiskRuns
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rankscope"):
            raise
        raise MissingError(
            f"`rankscope dashboard` needs the Python package {error.name!r}: pip install 'rankscope[dashboards]'"
        ) from error
    source = DiskRuns(path)
    sock = bind(host, port)
    app = create_app(source, DashboardConfig(allow_any_host=allow_remote))
    url = f"http://{host_port(host, sock.getsockname()[1])}/"

    def announce() -> None:
        click.echo(f"rankscope dashboard of {path}: {url}  (Ctrl-C ends it)", err=True)
        if open_browser:
            click.launch(url)

    server.serve(app, sock, workers=workers, ready=announce)
