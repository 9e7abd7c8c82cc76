"""``rankscope dashboard`` and ``rankscope report``. The extra is imported only when a command runs, so that help is fast."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from rankscope.analysis.trace.locations import local_path
from rankscope.base.errors import MissingError, RankscopeError
from rankscope.base.http import host_port, is_loopback, open_listener
from rankscope.base.options import ListenAddress, Size, http_url, link_url
from rankscope.base.text import one_line
from rankscope.runs.named import DEFAULT_FOLDER, newest_run

if TYPE_CHECKING:
    from rankscope.dashboards.web.config import DashboardConfig

PROMETHEUS_S: Final = 5.0
"""Timeout of queries to Prometheus, short because a user waits for the page."""

_LOOK_AGAIN_S: Final = 1.0


_LABEL: Final = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"


class HostName(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A host name or address as browsers send it, without a port; ``.NAME`` includes all names that end with it."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the host name."""
        if re.fullmatch(rf"\.?(?!.{{254}}){_LABEL}(\.{_LABEL})*|\[[0-9A-Fa-f:.]+\]", value) is None:
            self.fail(f"{value!r} is not a host's name or address, without a port, such as runs.example.org", param, ctx)
        return str(value)


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _outside_of_runs(_context: click.Context, _option: click.Parameter, folder: Path | None) -> Path | None:
    """Check the cache folder: in a run, each result would be a change of the run, which is then analysed again."""
    from rankscope.runs.reader import is_visible_run

    for parent in () if folder is None else (folder.resolve(), *folder.resolve().parents):
        if is_visible_run(parent):
            raise click.BadParameter(f"{folder} lies in the run {parent}; give a folder outside of it")
    return folder


def cache_options(command: _Command) -> _Command:
    """Add the options that place and bound the cache of results; every command that uses it has them."""
    folder = click.option(
        "--cache",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_outside_of_runs,
        envvar="RANKSCOPE_CACHE",
        show_envvar=True,
        metavar="FOLDER",
        help="Where results are kept for the next time.  [default: $XDG_CACHE_HOME/rankscope/dashboard]",
    )
    size = click.option(
        "--cache-size",
        type=Size(),
        envvar="RANKSCOPE_CACHE_SIZE",
        show_envvar=True,
        default="2GiB",
        show_default=True,
        help="Keep at most this much there; the least recently used results are removed first.",
    )
    return folder(size(command))


def _perfetto_url(text: str) -> str | None:
    return None if text == "off" else link_url(text)


@click.command(
    epilog="""
\b
Examples:
  rankscope dashboard                              all runs in rankscope-runs
  rankscope dashboard RUN --open                   one run, in the browser
  rankscope dashboard /shared/runs --listen 127.0.0.1:9000
\b
For other machines, with a token (make one: openssl rand -hex 32 > token):
  rankscope dashboard RUNS --token-file token --listen 10.0.0.7:8050
\b
Behind a proxy on this machine that logs people in:
  rankscope dashboard RUNS --trusted-proxy-header X-Forwarded-User \\
      --allow-host runs.example.org
\b
The token may also be in RANKSCOPE_DASHBOARD_TOKEN.
"""
)
@click.argument("path", default=DEFAULT_FOLDER, callback=lambda _context, _option, value: local_path(value))
@click.option(
    "--listen", type=ListenAddress(), default="127.0.0.1:8050", show_default=True, help="Where to serve; port 0 for any free one."
)
@click.option("--port", type=click.IntRange(0, 65535), help="Serve at another port of the default address.")
@click.option(
    "--memory",
    "memory_bytes",
    type=Size(),
    help="Most memory of all analyses together, such as 8GiB.  [default: 90% of what is left when one starts]",
)
@cache_options
@click.option("--open/--no-open", "open_browser", default=False, show_default=True, help="Open the page in the browser.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Require the token in FILE. Users with the token see the pages and may request captures.",
)
@click.option(
    "--trusted-proxy-header",
    metavar="NAME",
    help="Header in which a proxy names the user it has logged in; these users see the pages.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDR[/BITS]",
    help="Accept that header only from this address; may be repeated.  [default: this machine]",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    type=HostName(),
    multiple=True,
    help="Answer under this host name, too, besides localhost and the address of --listen; may be repeated.",
)
@click.option(
    "--perfetto-url",
    type=_perfetto_url,
    default="https://ui.perfetto.dev",
    show_default=True,
    metavar="URL",
    help="Open windows of a timeline in this Perfetto; off: windows can only be saved.",
)
@click.option(
    "--prometheus",
    "prometheus_url",
    type=http_url,
    metavar="URL",
    help="Also read alerts from the Prometheus that scrapes the nodes, http://host:9090.",
)
@click.option(
    "--prometheus-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="One line: a bearer token, or USER:PASSWORD.  [default: $RANKSCOPE_PROMETHEUS_TOKEN]",
)
@click.option(
    "--prometheus-ca", type=click.Path(path_type=Path, dir_okay=False), help="Certificate of the authority of an https address."
)
def dashboard(
    *,
    path: Path,
    listen: tuple[str, int],
    port: int | None,
    memory_bytes: int | None,
    cache: Path | None,
    cache_size: int,
    open_browser: bool,
    token_file: Path | None,
    trusted_proxy_header: str | None,
    trusted_proxies: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    perfetto_url: str | None,
    prometheus_url: str | None,
    prometheus_token_file: Path | None,
    prometheus_ca: Path | None,
) -> None:
    """Serve the pages that show the evidence: verdict, bars, heat map, tables.

    PATH is a run directory, or a folder of run directories (default: rankscope-runs). Live runs are followed. Ctrl-C ends it.
    """
    host, port = listen if port is None else _with_port(listen, port)
    # Removed from the environment, so that child processes do not inherit it.
    secret = os.environ.pop("RANKSCOPE_DASHBOARD_TOKEN", None)
    named = _names_of(host)
    if not is_loopback(host):
        if token_file is None and secret is None and (trusted_proxy_header is None or not trusted_proxies):
            raise click.UsageError(
                f"{host} can be reached from other machines, so it must be known who may read the runs: add --token-file FILE "
                "(make one with: openssl rand -hex 32 > FILE), or --trusted-proxy-header NAME with --trusted-proxy ADDR for a "
                "proxy that logs people in; or listen on 127.0.0.1 and use an SSH tunnel."
            )
        if not named and not allowed_hosts:
            raise click.UsageError(
                f"{host} is every address of this machine: say under which names people reach it, with --allow-host NAME."
            )
        allowed_hosts = (*allowed_hosts, *named)
    if prometheus_url is None and (prometheus_token_file or prometheus_ca):
        raise click.UsageError("--prometheus-token-file and --prometheus-ca are about a Prometheus: give --prometheus URL")
    try:
        from rankscope.dashboards.app import create_app
        from rankscope.dashboards.store.builders import JobBuilder
        from rankscope.dashboards.store.cache import Store, cache_folder
        from rankscope.dashboards.store.disk import DiskRuns
        from rankscope.dashboards.web import server

        prometheus = None
        if prometheus_url is not None:
            from rankscope.dashboards.alerts.prometheus import Prometheus, PrometheusServer

            prometheus = Prometheus(
                PrometheusServer(url=prometheus_url, token_file=prometheus_token_file, ca_file=prometheus_ca),
                answer_s=PROMETHEUS_S,
            )
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rankscope"):
            raise
        raise MissingError(
            f"`rankscope dashboard` needs the Python package {error.name!r}: pip install 'rankscope[dashboards]'"
        ) from error
    config = _config(token_file, secret, trusted_proxy_header, trusted_proxies, allowed_hosts, perfetto_url=perfetto_url)
    builder = JobBuilder(Store(cache or cache_folder(), cache_size), memory_bytes=memory_bytes)
    source = DiskRuns(path, builder, prometheus=prometheus, look_again_s=_LOOK_AGAIN_S)
    sock = open_listener(host, port)
    app = create_app(source, config)
    # A browser cannot open the wildcard address.
    reached = host if named else next((name.strip("[]") for name in allowed_hosts if not name.startswith(".")), "127.0.0.1")
    url = f"http://{host_port(reached, sock.getsockname()[1])}/"

    def announce() -> None:
        click.echo(f"rankscope dashboard of {path}: {url}  (Ctrl-C ends it)", err=True)
        if open_browser:
            click.launch(url)

    server.serve(app, sock, ready=announce)


def _with_port(listen: tuple[str, int], port: int) -> tuple[str, int]:
    """Return the default address with another port. Raises ``click.UsageError`` where the user named an address, too."""
    if click.get_current_context().get_parameter_source("listen") is not ParameterSource.DEFAULT:
        raise click.UsageError("--port is of the default address: with --listen, give the port there, as HOST:PORT.")
    return listen[0], port


def _names_of(host: str) -> tuple[str, ...]:
    """Return the listening address as a browser writes it; empty for the wildcard address."""
    try:
        address = ip_address(host)
    except ValueError:
        return (host,)
    if address.is_unspecified:
        return ()
    return (f"[{address.compressed}]" if address.version == 6 else address.compressed,)


def _config(
    token_file: Path | None,
    secret: str | None,
    proxy_header: str | None,
    proxies: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    *,
    perfetto_url: str | None,
) -> DashboardConfig:
    from rankscope.dashboards.web.config import DashboardConfig
    from rankscope.dashboards.web.token import VARIABLE, read_token, token_of
    from rankscope.dashboards.web.trusted_proxy import TrustedProxy

    if proxies and proxy_header is None:
        raise click.UsageError(
            "--trusted-proxy needs --trusted-proxy-header NAME: the header in which the proxy says who is there."
        )
    try:
        proxy = None if proxy_header is None else TrustedProxy.parse(proxy_header, proxies)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    token = read_token(token_file) if token_file is not None else None if secret is None else token_of(secret, VARIABLE)
    return DashboardConfig(token=token, proxy=proxy, allowed_hosts=allowed_hosts, perfetto_url=perfetto_url)


class _ZoomRange(click.ParamType[Any]):
    """A range of steps: ``100-119``, first and last, as in the address of a page; or ``100:120``."""

    name = "A-B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return first and last step."""
        match = re.fullmatch(r"([0-9]{1,15})([-:])([0-9]{1,15})", str(value), re.ASCII)
        if match is None:
            self.fail(f"{value!r} is no range of steps such as 100-119", param, ctx)
        first, last = int(match[1]), int(match[3]) - (match[2] == ":")
        if last < first:
            self.fail(f"{value!r} has no step in it", param, ctx)
        return first, last


@click.command(
    epilog="""
\b
Examples:
  rankscope report                          the newest run, into report.html
  rankscope report RUN -o bert.html --rank 3 --steps 1000-1200
  rankscope report RUN --rows host          hosts instead of ranks
  rankscope report RUN -o - | ssh host 'cat >report.html'

The file opens in any browser of 2023 or later, also offline. SOURCE_DATE_EPOCH sets the time it says it was made at.
"""
)
@click.argument(
    "path",
    required=False,
    metavar="[RUN]",
    callback=lambda _context, _option, value: None if value is None else local_path(value),
)
@click.option(
    "-o",
    "--output",
    "target",
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="Where to write; a file of that name is replaced; - is standard output.",
)
@cache_options
@click.option("--rank", type=click.IntRange(0), help="Pick out this rank in every view.")
@click.option("--steps", type=_ZoomRange(), help="Zoom into steps A to B, both included.")
@click.option("--metric", help="Metric of the heat map, such as wall_us.  [default: own_us]")
@click.option(
    "--rows",
    type=click.Choice(["rank", "host"]),
    help="Show one row per rank or per host in heat map, bars and tables.  [default: as the verdict blames]",
)
def report(
    path: Path | None,
    *,
    target: str,
    cache: Path | None,
    cache_size: int,
    rank: int | None,
    steps: tuple[int, int] | None,
    metric: str | None,
    rows: str | None,
) -> None:
    """Write the pages of a run as one file that needs neither a server nor a network: for a ticket, a mail, an archive.

    RUN is a run directory, by default the newest run in rankscope-runs; one that goes on is reported as it is now.
    """
    from rankscope.dashboards.report.command import ReportSelection, write_report

    if path is None:
        path = newest_run()
        click.echo(f"rankscope: no RUN is given, so this is the newest run, {one_line(str(path))}", err=True)
    result = write_report(path, target, ReportSelection(rank, steps, metric, rows), cache=cache, cache_bytes=cache_size)
    click.echo(result.sentence, err=target == "-")
    if result.faults:
        raise RankscopeError(f"the report is written, but not all of it could be drawn: {'; '.join(result.faults)}")
