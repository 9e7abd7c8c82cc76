"""``rankscope exporter``: the node daemon's command line."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final

import click

from rankscope.base.errors import InputError, MissingError
from rankscope.base.logs import FORMATS, LEVELS, default_style
from rankscope.base.options import Duration, ListenAddress
from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.config_file import load_config
from rankscope.exporter.options import SectionGroup, SimulatedGpus, section, telemetry_path, unknown_variables
from rankscope.exporter.settings import DEFAULT_PORT, ExporterSettings, default_socket, default_state_dir

_DURATION: Final = Duration()
_ADDRESS: Final = ListenAddress()
_PATH: Final = click.Path(path_type=Path, readable=False)  # readability is checked on use, for a better message
_ARGUMENTS: Final = "rankscope.exporter.arguments"

_EXAMPLES: Final = """
\b
Examples:
  rankscope exporter                                 all GPUs of this node
  rankscope exporter --simulate 4 --once             a page without a GPU
  rankscope exporter --listen 127.0.0.1:9838         for this machine only
  rankscope exporter --no-collector.gpu --spool DIR  only files of ranks
  rankscope exporter release 3 --ttl 10m             to reset GPU 3

Every option can also be given as RANKSCOPE_EXPORTER_ and its name in capitals, with _ for . and -
(RANKSCOPE_EXPORTER_WEB_LISTEN_ADDRESS=:9838), or as a key of the --config file (web.listen-address = ":9838").
A flag takes precedence over the environment, the environment over the file. SIGHUP reads the file again; the
environment stays that of the start.

Exit status: 0 ended by a signal, 2 usage, 3 an address, folder or file that cannot be used, 4 a package is missing,
5 the driver was replaced, 6 the process that starts the GPUs' processes died. 5 and 6 need a restart.
"""


class _Exporter(SectionGroup):
    """Command group that keeps its arguments, to parse them again on SIGHUP."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


def _load(ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = load_config(value, ctx)
    return value


_web = section("Web")
_gpus = section("GPUs")
_spool = section("Ranks")
_jobs = section("Jobs")
_push = section("Other formats")
_control = section("Release of GPUs")
_daemon = section("Daemon")


def _collector_options(command: Any) -> Any:
    """Add a ``--collector.NAME`` option for each collector of the catalogue."""
    for collector in reversed(COLLECTORS.values()):
        name = collector.name
        command = section("Collectors")(
            f"--collector.{name}/--no-collector.{name}",
            f"collect_{name}",
            default=None,
            help=f"{collector.help}  [{'on' if collector.default_on else 'off'}]",
        )(command)
    return command


@click.group(cls=_Exporter, invoke_without_command=True, epilog=_EXAMPLES)
@_web(
    "--web.listen-address",
    "--listen",
    "listen",
    type=_ADDRESS,
    multiple=True,
    default=(f":{DEFAULT_PORT}",),
    show_default=True,
    help="Address to listen on; repeatable; IPv6 as [::]:9838; port 0 is any free port.",
)
@_web(
    "--web.config.file",
    "web_config",
    type=_PATH,
    help="TLS and users, in the format of exporter-toolkit; read again when it changes.",
)
@_web(
    "--web.telemetry-path",
    "telemetry_path",
    default="/metrics",
    show_default=True,
    callback=telemetry_path,
    help="Path of the metrics.",
)
@_collector_options
@section("Collectors")(
    "--collector.disable-defaults", "disable_defaults", is_flag=True, help="Run only the collectors that are enabled by name."
)
@_gpus(
    "--interval",
    "interval_s",
    type=Duration("100ms", "1m"),
    default="1s",
    show_default=True,
    help="Interval of reading GPUs and spool, from 100ms to 1m.",
)
@_gpus(
    "--call-timeout",
    "call_timeout_s",
    type=Duration("100ms"),
    default="5s",
    show_default=True,
    help="A driver call that takes longer counts as hung.",
)
@_gpus("--expected-gpus", type=click.IntRange(0, 1024), metavar="N", help="Number of GPUs that this node should have.")
@_gpus(
    "--state-dir",
    type=_PATH,
    help="Folder of the known GPUs and the Xid journal.  [default: /var/lib/rankscope/exporter, or the user's own]",
)
@_gpus(
    "--exit-on-stale-driver/--no-exit-on-stale-driver",
    "restart_on_stale_driver",
    default=True,
    show_default=True,
    help="Exit with status 5 when driver and library no longer match and no GPU answers.",
)
@_gpus(
    "--xid.kernel-log/--no-xid.kernel-log",
    "xid_kernel_log",
    default=True,
    show_default=True,
    help="Also read Xids from the kernel log.",
)
@_gpus(
    "--simulate",
    type=SimulatedGpus(),
    metavar="N[xMODEL]",
    help="Simulate N GPUs instead of reading real ones; labelled as simulated.",
)
@_gpus("--host", help="Host label of gpu_info.  [default: this machine's name]")
@_spool("--spool", type=_PATH, help="Folder with the text files of ranks.  [default: /run/rankscope/spool, or the user's own]")
@_spool(
    "--spool-stale",
    "spool_stale_s",
    type=_DURATION,
    default="5m",
    show_default=True,
    help="Age of a file from which its rank counts as silent.",
)
@_spool(
    "--spool-forget",
    "spool_forget_s",
    type=_DURATION,
    default="24h",
    show_default=True,
    help="Age of a file from which it is ignored.",
)
@_jobs("--jobs.user/--jobs.no-user", "jobs_users", default=True, show_default=True, help="Show the user of a job.")
@_jobs("--jobs.pod/--jobs.no-pod", "jobs_pods", default=True, show_default=True, help="Show namespace, pod and container.")
@_jobs(
    "--jobs.slurm-dir",
    "jobs_slurm_dir",
    type=_PATH,
    help="Folder in which Slurm's prolog records the jobs.  [default: /run/rankscope/jobs]",
)
@_jobs("--jobs.podresources-socket", "jobs_podresources_socket", type=_PATH, help="The kubelet's PodResources socket.")
@_push("--compat", type=click.Choice(["dcgm"]), help="Also serve the metrics of another exporter: dcgm, at /dcgm/metrics.")
@_push(
    "--compat.dcgm-counters",
    "compat_counters",
    type=_PATH,
    help="Serve the metrics that this counters file (CSV) of dcgm-exporter lists.",
)
@_push(
    "--compat.dcgm-hostname",
    "compat_hostname",
    type=click.Choice(["Hostname", "hostname"]),
    default="Hostname",
    show_default=True,
    help="Spelling of the label Hostname; newer releases of dcgm-exporter use hostname.",
)
@_push(
    "--compat.listen-address",
    "compat_listen",
    type=_ADDRESS,
    multiple=True,
    help="Serve the page of --compat at this address, too, as /metrics; repeatable.",
)
@_push("--otlp", is_flag=True, help="Push to OpenTelemetry, as configured by the OTEL_… variables.")
@_control(
    "--control.socket",
    "control_socket",
    type=_PATH,
    help="Unix socket for releases.  [default: below /run/rankscope, or the user's own]",
)
@_control("--forget", multiple=True, metavar="UUID", help="Forget a GPU that was removed from this node, and exit; repeatable.")
@_daemon("--config", type=_PATH, is_eager=True, expose_value=False, callback=_load, help="TOML file with any of these options.")
@_daemon(
    "--log.level",
    "log_level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Least severe level to log.",
)
@_daemon(
    "--log.format",
    "log_format",
    type=click.Choice(FORMATS, case_sensitive=False),
    help="Format of the log.  [default: text on a terminal, else logfmt]",
)
@_daemon("--once", is_flag=True, help="Print one page and exit.")
@click.pass_context
def exporter(ctx: click.Context, /, once: bool, forget: tuple[str, ...], **parameters: Any) -> None:
    """Serve the metrics of this node's GPUs and ranks to Prometheus.

    Each GPU is read in the background by a process of its own. A scrape of /metrics shows the last sample and never waits for
    the driver. Without a driver the exporter keeps running, reports it in rankscope_exporter_collector_success, and retries.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = parameters["control_socket"]
        return
    settings = _settings(parameters)
    if forget:
        _forget(settings, forget)
        return
    remarks = unknown_variables(ctx.command, os.environ)
    if settings.spool is not None:
        _check_spool(settings.spool)
    try:
        from rankscope.exporter import daemon

        if once:
            click.echo(daemon.render_once(settings, remarks=remarks), nl=False)
        else:
            arguments = ctx.meta[_ARGUMENTS]
            daemon.run(settings, read_again=lambda: _read_again(arguments), option_names=option_names(), remarks=remarks)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rankscope"):
            raise
        raise MissingError(f"the exporter needs {error.name}: pip install 'rankscope[exporter]'") from error


def option_names() -> dict[str, str]:
    """Return the command-line option of each setting."""
    names = {str(param.name): param.opts[0] for param in exporter.params}
    return names | dict.fromkeys(("collectors", "collectors_off"), "--collector.…") | {"compat_dcgm": names["compat"]}


def _read_again(arguments: tuple[str, ...]) -> ExporterSettings:
    """Return the settings of these arguments, environment and configuration file now; raises ``click.ClickException``."""
    with exporter.make_context("exporter", list(arguments)) as ctx:
        parameters = {name: value for name, value in ctx.params.items() if name not in ("once", "forget")}
        return _settings(parameters)


def _settings(parameters: dict[str, Any]) -> ExporterSettings:
    parameters = dict(parameters)
    named = {name: parameters.pop(f"collect_{name}") for name in COLLECTORS}
    collectors = _collectors(named, disable=parameters.pop("disable_defaults"))
    off = frozenset(name for name, choice in named.items() if choice is False)
    compat = parameters.pop("compat")
    if parameters["simulate"] and "gpu" not in collectors:
        raise click.UsageError("--simulate needs the gpu collector")
    if compat is None and (parameters["compat_counters"] or parameters["compat_listen"]):
        raise click.UsageError("--compat.… needs --compat dcgm")
    if parameters["spool_forget_s"] < parameters["spool_stale_s"]:
        raise click.UsageError("--spool-forget is shorter than --spool-stale: no rank would ever be silent")
    parameters["host"] = parameters["host"] or socket.gethostname()
    parameters["log_format"] = parameters["log_format"] or default_style()
    return ExporterSettings(collectors=collectors, collectors_off=off, compat_dcgm=compat == "dcgm", **parameters)


def _collectors(named: dict[str, bool | None], *, disable: bool) -> frozenset[str]:
    """Return the collectors to run.

    Enabling a collector that queries GPUs by name also enables ``gpu``; without ``gpu`` no such collector runs.
    """
    on = {name for name, choice in named.items() if (COLLECTORS[name].default_on and not disable if choice is None else choice)}
    enabled = {name for name, choice in named.items() if choice and COLLECTORS[name].reads_gpu}
    if named["gpu"] is False:
        if enabled:
            raise click.UsageError(f"--collector.{min(enabled)} needs the gpu collector")
        on = {name for name in on if not COLLECTORS[name].reads_gpu}
    elif enabled:
        on.add("gpu")
    # Jobs are attributed to GPUs, so the jobs collector needs the gpu collector.
    if "gpu" not in on:
        on.discard("jobs")
    if not on:
        raise click.UsageError("all collectors are off: enable one with --collector.NAME")
    return frozenset(on)


def _check_spool(folder: Path) -> None:
    """Raise ``InputError`` if the spool cannot be read, or if it and its parent are missing.

    A missing folder in an existing parent is created later; a missing parent is more likely a mistyped path.
    """
    try:
        try:
            os.scandir(folder).close()
        except FileNotFoundError:
            folder.parent.stat()
    except OSError as error:
        raise InputError(error.filename or folder, f"{error.strerror or error}; name another folder with --spool") from error


def _forget(settings: ExporterSettings, uuids: tuple[str, ...]) -> None:
    from rankscope.exporter.fleet import inventory

    folder = settings.state_dir or default_state_dir()
    for uuid in uuids:
        try:
            inventory.forget(folder, uuid)
        except KeyError as error:
            raise InputError(folder, f"no GPU {uuid} is known there; is this the exporter's --state-dir?") from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(folder, f"{reason}; name the exporter's folder with --state-dir") from error
        click.echo(f"{uuid} is forgotten")


_SOCKET_OPTION: Final = click.option(
    "--socket",
    "--control.socket",
    "socket",
    type=_PATH,
    help="Socket of the running exporter, as in its --control.socket.  [default: the exporter's default]",
)


def _named(gpu: str) -> None:
    if not gpu.strip():
        raise click.UsageError("GPU is empty: a uuid, PCI bus id or index is needed")


@exporter.command(short_help="Make the running exporter close a GPU, for a reset.")
@click.argument("gpu")
@click.option(
    "--ttl",
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Time after which the exporter reads the GPU again; at most 24h.",
)
@_SOCKET_OPTION
@click.pass_obj
def release(control_socket: Path | None, gpu: str, ttl: str, socket: Path | None) -> None:
    """Make the running exporter close GPU (uuid, PCI bus id or index), for a reset or a MIG change.

    Exit status 1: its process is stuck in the driver.
    """
    from rankscope.exporter.web.control import send_request

    _named(gpu)
    answer = send_request(socket or control_socket or default_socket(), "release", gpu=gpu, ttl=ttl)
    click.echo(f"GPU {gpu} is released for {answer['ttl_s']:g} s; end that early with: rankscope exporter resume {gpu}")


@exporter.command()
@click.argument("gpu")
@_SOCKET_OPTION
@click.pass_obj
def resume(control_socket: Path | None, gpu: str, socket: Path | None) -> None:
    """Let the running exporter read a released GPU again."""
    from rankscope.exporter.web.control import send_request

    _named(gpu)
    send_request(socket or control_socket or default_socket(), "resume", gpu=gpu)
    click.echo(f"GPU {gpu} is read again")
