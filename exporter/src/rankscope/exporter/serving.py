"""The daemon after all processes are forked: serve until a signal, then shut down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError
from rankscope.base.followed_files import ReloadThread
from rankscope.base.http import application, host_port
from rankscope.base.http_server import ListenEndpoint, Server
from rankscope.base.process import notify_systemd
from rankscope.exporter.assembly import Assembly
from rankscope.exporter.fleet.nursery import Nursery
from rankscope.exporter.pages.dcgm import DcgmPage
from rankscope.exporter.pages.dcgm_counters import counters_of, with_collectors
from rankscope.exporter.pages.otlp import OtlpPush
from rankscope.exporter.reload import ReloadHandler
from rankscope.exporter.settings import ExporterSettings, default_socket
from rankscope.exporter.web.access import WebAccess
from rankscope.exporter.web.app import ExporterApp
from rankscope.exporter.web.control import listen_unix, remove_socket

logger = logging.getLogger(__name__)

_FIRST_SAMPLE_S: Final = 3.0


def serve(
    settings: ExporterSettings,
    nursery: Nursery | None,
    sockets: list[socket.socket],
    compatible_sockets: list[socket.socket],
    *,
    read_again: Callable[[], ExporterSettings],
    option_names: Mapping[str, str],
) -> int:
    """Serve on the sockets until a signal arrives or only a restart helps; return the exit status.

    Raises ``InputError`` and ``MissingError`` before any thread has started.
    """
    counters = counters_of(settings)
    settings = with_collectors(settings, counters)
    access = WebAccess(settings.web_config)

    def on_fatal(status: int, reason: str) -> None:
        logger.error("the exporter ends with status %d: %s", status, reason)
        loop.call_soon_threadsafe(_end, ended, status)

    assembly = Assembly(settings, nursery, lasting=True, on_fatal=on_fatal)
    push = OtlpPush(assembly.page) if settings.otlp else None
    compatible = DcgmPage(assembly.page, counters, hostname_label=settings.compat_hostname) if settings.compat_dcgm else None
    app = ExporterApp(assembly.page, access, telemetry_path=settings.telemetry_path, compatible=compatible)
    control_path, control = _control_socket(settings)
    loop = asyncio.new_event_loop()
    ended: asyncio.Future[int] = loop.create_future()
    endpoints = _endpoints(app, access, sockets, compatible_sockets, control)
    reload = ReloadHandler(settings, read_again, option_names, access)

    async def live() -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _end, ended, 0)
        loop.add_signal_handler(signal.SIGHUP, ReloadThread(reload).request)
        # Listen after the first pass, so that the first scrape shows the GPUs, but do not wait long for one that hangs.
        first = asyncio.ensure_future(loop.run_in_executor(None, assembly.wait, _FIRST_SAMPLE_S))
        await asyncio.wait((first, asyncio.shield(ended)), return_when=asyncio.FIRST_COMPLETED)
        _log_gpus(assembly)
        server = Server(endpoints)
        server.start()
        _log_addresses(access.scheme, settings.telemetry_path, sockets, compatible_sockets)
        notify_systemd("READY=1")
        status = await ended
        notify_systemd("STOPPING=1")
        await server.stop()
        return status

    assembly.start()
    if push is not None:
        push.start()
    _log_start(assembly, control_path if control is not None else None)
    status = loop.run_until_complete(live())
    if push is not None:
        push.stop()
    assembly.stop()
    if control is not None:
        with contextlib.suppress(OSError):
            remove_socket(control_path)
    return status


def _endpoints(
    app: ExporterApp,
    access: WebAccess,
    sockets: list[socket.socket],
    compatible_sockets: list[socket.socket],
    control: socket.socket | None,
) -> list[ListenEndpoint]:
    web, compatible = application(app.web), application(app.compatible_only)
    endpoints = [ListenEndpoint(sock, web, access.tls, access.admits) for sock in sockets]
    endpoints += [ListenEndpoint(sock, compatible, access.tls, access.admits) for sock in compatible_sockets]
    return [*endpoints, ListenEndpoint(control, application(app.local))] if control is not None else endpoints


def _end(ended: asyncio.Future[int], status: int) -> None:
    if not ended.done():
        ended.set_result(status)


def _control_socket(settings: ExporterSettings) -> tuple[Path, socket.socket | None]:
    """Open the control socket for releases; return its path and socket.

    Without ``--control.socket``, the socket is None if the default path fails or no real GPU is read.

    Raises:
        InputError: the path of ``--control.socket`` cannot be used.
    """
    path = settings.control_socket or default_socket()
    if settings.control_socket is None and (settings.simulate or "gpu" not in settings.collectors):
        return path, None
    try:
        return path, listen_unix(path)
    except OSError as error:
        unusable = InputError(path, f"{error.strerror or error}; choose another place with --control.socket")
        if settings.control_socket is not None:
            raise unusable from error
        logger.warning("GPUs cannot be released here: %s", unusable)
        return path, None


def _log_start(assembly: Assembly, control: Path | None) -> None:
    page = assembly.page
    if page.simulated:
        logger.warning("the GPUs are SIMULATED: their values are not real")
    if assembly.spool_folder is not None:
        logger.info("spool folder", extra={"spool": str(assembly.spool_folder)})
    if control is not None:
        logger.info("GPUs can be released through a socket", extra={"socket": str(control)})


def _log_gpus(assembly: Assembly) -> None:
    fleet = assembly.page.fleet
    if fleet is not None:
        state = fleet.state()
        logger.info("GPUs are read", extra={"gpus": len(state.gpus), "up": sum(gpu.up for gpu in state.gpus)})


def _log_addresses(scheme: str, path: str, sockets: list[socket.socket], compatible_sockets: list[socket.socket]) -> None:
    for sock in sockets:
        logger.info("listening on %s://%s%s", scheme, host_port(*sock.getsockname()[:2]), path)
    for sock in compatible_sockets:
        logger.info("the DCGM-compatible page is on %s://%s/metrics", scheme, host_port(*sock.getsockname()[:2]))
