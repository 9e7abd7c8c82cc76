"""``rankscope exporter``: the node daemon's command line."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import click

from rankscope.exporter.errors import ExporterInputError, ExporterMissingError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class _Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """``500ms``, ``1s``, ``5m``, ``24h``; a bare number is seconds. The value is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", value)
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r} is not a duration such as 500ms, 1s, 5m or 24h", param, ctx)
        return float(match[1]) * _SECONDS[match[2] or "s"]


class _Address(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """``HOST:PORT``, ``:PORT`` for all addresses, ``[IPV6]:PORT``."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value[0], value[1]
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^%\[\]]+)?)\]|([^:\[\]]*)):([0-9]{1,5})", value)
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, :PORT or [IPV6]:PORT", param, ctx)
        return match[1] or match[2] or "0.0.0.0", int(match[3])  # noqa: S104  a node exporter is there to be reached


_DURATION = _Duration()


_EXAMPLES = """
\b
Examples:
  rankscope exporter                                 all GPUs of this node, on port 9838
  rankscope exporter --simulate 4 --once             what a page looks like, without a GPU
  rankscope exporter --listen 127.0.0.1:9838         for this machine only
  rankscope exporter --no-collector.gpu --spool DIR  only the ranks' files

Exit status: 0 ended by a signal, 2 usage, 3 an address or folder that cannot be used, 4 something is not installed.
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--listen", type=_Address(), default=":9838", show_default=True, help="Where to serve; IPv6 as [::]:9838, port 0 for any."
)
@click.option("--interval", type=_DURATION, default="1s", show_default=True, help="How often GPUs and spool are read.")
@click.option("--collector.gpu/--no-collector.gpu", "collect_gpu", default=True, show_default=True, help="GPUs through NVML.")
@click.option(
    "--collector.spool/--no-collector.spool", "collect_spool", default=True, show_default=True, help="Text files of ranks."
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, readable=False),  # we ask, and say it our way
    help="Folder where ranks leave their text files.  [default: /run/rankscope/spool, or one of your own without it]",
)
@click.option("--spool-stale", type=_DURATION, default="5m", show_default=True, help="A rank is silent when its file is older.")
@click.option(
    "--spool-forget", type=_DURATION, default="24h", show_default=True, help="A silent rank is forgotten after this time."
)
@click.option(
    "--simulate", type=click.IntRange(1, 64), metavar="N", help="Invent N GPUs instead of reading real ones; labelled as such."
)
@click.option("--host", help="Host label of gpu_info.  [default: this machine's name]")
@click.option("--once", is_flag=True, help="Print one page and exit.")
def exporter(  # noqa: PLR0917  options arrive by name
    listen: tuple[str, int],
    interval: float,
    collect_gpu: bool,
    collect_spool: bool,
    spool: Path | None,
    spool_stale: float,
    spool_forget: float,
    simulate: int | None,
    host: str | None,
    once: bool,
) -> None:
    """Serve this node's GPUs, and what its ranks publish, to Prometheus.

    GPUs are read in the background; a scrape of /metrics shows the last sample and never waits for a driver. Without a driver the
    exporter stays up, says so in rankscope_exporter_collector_success, and tries again.
    """
    if not (collect_gpu or collect_spool):
        raise click.UsageError("nothing to do: both collectors are off")
    if simulate and not collect_gpu:
        raise click.UsageError("--simulate needs the gpu collector")
    if spool is not None:
        _look_into(spool)
    try:
        from rankscope.exporter import daemon
        from rankscope.exporter.spool_folder import SpoolFolder, default_spool
    except ModuleNotFoundError as error:
        raise ExporterMissingError(f"the exporter needs {error.name}: pip install 'rankscope[exporter]'") from error
    options = daemon.ExporterOptions(
        interval_s=interval,
        simulate=simulate or 0,
        collect_gpu=collect_gpu,
        collect_spool=collect_spool,
        spool=SpoolFolder(spool) if spool is not None else default_spool(make=not once),
        spool_stale_s=spool_stale,
        spool_forget_s=spool_forget,
        host=host or socket.gethostname(),
    )
    if once:
        click.echo(daemon.render_once(options), nl=False)
    else:
        daemon.run(options, host=listen[0], port=listen[1])


def _look_into(folder: Path) -> None:
    """Raises ``ExporterInputError`` for a spool that will never work; one that is missing can be made in a folder that is there.

    A path whose parent is missing as well is more likely mistyped than meant.
    """
    try:
        try:
            os.scandir(folder).close()
        except FileNotFoundError:
            folder.parent.stat()
    except OSError as error:
        raise ExporterInputError(
            f"{error.filename or folder}: {error.strerror or error}; name another folder with --spool"
        ) from error
