"""Running the exporter: the processes that call the driver first, then everything else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from rankscope.exporter import logs
from rankscope.exporter.fleet.nursery import Nursery
from rankscope.exporter.settings import Settings
from rankscope.exporter.web.listening import listen


def run(settings: Settings, *, read_again: Callable[[], Settings]) -> NoReturn:
    """Serve until SIGTERM, SIGINT, or until only a restart helps; ends the process with its exit status.

    ``read_again`` gives the settings after a SIGHUP. Raises ``ExporterInputError`` and ``ExporterMissingError``.
    """
    logs.set_up(settings.log_level, settings.log_format)
    # Until the server takes them over: while a driver is slow to start, a signal ends it all the same.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sockets = [listen(host, port) for host, port in settings.listen]
    compatible = [listen(host, port) for host, port in settings.compat_listen]
    nursery = _nursery(settings)
    # From here on memory is this process's alone; what is imported before the fork would be in every GPU's process.
    from rankscope.exporter.serving import serve

    status = serve(settings, nursery, sockets, compatible, read_again=read_again)
    sys.stderr.flush()
    # A thread that is stuck in a file system, or in a driver's file, must not keep the process.
    os._exit(status)


def render_once(settings: Settings) -> str:
    """One page as text, after one pass of every collector. Nothing is left behind: a spool that is missing stays missing."""
    logs.set_up("warning", settings.log_format)
    nursery = _nursery(settings)
    from rankscope.exporter.assembly import Assembly

    assembly = Assembly(settings, nursery, lasting=False)
    assembly.start()
    assembly.wait(30)
    body, _ = assembly.page.render()
    assembly.stop()
    return body.decode()


def _nursery(settings: Settings) -> Nursery | None:
    return Nursery.start() if "gpu" in settings.collectors and not settings.simulate else None
