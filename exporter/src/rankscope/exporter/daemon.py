"""Start of the exporter: fork the processes that call the driver first, then import and run everything else."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from rankscope.base import logs
from rankscope.base.http import open_listener
from rankscope.exporter.fleet.nursery import Nursery
from rankscope.exporter.pages.dcgm_counters import counters_of, with_collectors
from rankscope.exporter.settings import ExporterSettings

logger = logging.getLogger(__name__)


def run(
    settings: ExporterSettings,
    *,
    read_again: Callable[[], ExporterSettings],
    option_names: Mapping[str, str],
    remarks: Sequence[str] = (),
) -> NoReturn:
    """Serve until SIGTERM, SIGINT, or until only a restart helps; then exit the process with the exit status.

    ``read_again`` returns the settings after a SIGHUP; ``option_names`` are those of the settings; ``remarks`` are logged as
    warnings. Raises ``InputError`` and ``MissingError``.
    """
    logs.set_up(settings.log_level, settings.log_format)
    _log_remarks(remarks)
    _allow_descriptors()
    # Until the server installs its own handlers: a signal must end the process even while a driver is slow to start.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(open_listener(host, port)) for host, port in settings.listen]
        compatible = [opened.enter_context(open_listener(host, port)) for host, port in settings.compat_listen]
        nursery = _nursery(settings)
        logs.set_nonblocking()
        # Imported after the fork: modules imported earlier would use memory in every GPU's process.
        from rankscope.exporter.serving import serve

        status = serve(settings, nursery, sockets, compatible, read_again=read_again, option_names=option_names)
        logs.flush()
        # A thread that is stuck in a file system or in the driver must not keep the process alive.
        os._exit(status)


def render_once(settings: ExporterSettings, *, remarks: Sequence[str] = ()) -> str:
    """Return one page as text, after one pass of every collector. Writes no state and creates no spool."""
    logs.set_up("warning", settings.log_format)
    _log_remarks(remarks)
    counters = counters_of(settings)
    settings = with_collectors(settings, counters)
    nursery = _nursery(settings)
    logs.set_nonblocking()
    from rankscope.exporter.assembly import Assembly
    from rankscope.exporter.pages.dcgm import DcgmPage

    assembly = Assembly(settings, nursery, lasting=False)
    assembly.start()
    assembly.wait(30)
    pages = [assembly.page.render()[0]]
    if counters is not None:
        pages.append(DcgmPage(assembly.page, counters, hostname_label=settings.compat_hostname).render()[0])
    assembly.stop()
    logs.flush()
    return b"\n".join(pages).decode()


def _log_remarks(remarks: Sequence[str]) -> None:
    for remark in remarks:
        logger.warning(remark)


def _allow_descriptors() -> None:
    """Raise the soft limit of open files to the hard limit; the usual soft limit only protects programs that use ``select``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _nursery(settings: ExporterSettings) -> Nursery | None:
    return Nursery.start() if "gpu" in settings.collectors and not settings.simulate else None
