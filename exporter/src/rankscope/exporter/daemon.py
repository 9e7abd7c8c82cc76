"""Putting the exporter together: collectors in threads, one page, one server."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Final

from rankscope.exporter.app import App
from rankscope.exporter.loop import CollectorLoop
from rankscope.exporter.nvml import NvmlSource, load_nvml
from rankscope.exporter.page import Page
from rankscope.exporter.server import listen, serve
from rankscope.exporter.simulated import SimulatedSource
from rankscope.exporter.source import GpuSource, NodeSample
from rankscope.exporter.spool import Spool, SpoolSample, empty_sample
from rankscope.exporter.spool_folder import PRIVATE_MODE, SHARED_MODE, SpoolFolder, make_spool

_FIRST_SAMPLE_S: Final = 3.0
_ONCE_S: Final = 30.0
_STOP_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterOptions:
    """What the command line decides.

    ``simulate``: number of invented GPUs, 0 for the real ones. ``spool``: where ranks leave their text files; such a file is
    silent after ``spool_stale_s`` and forgotten after ``spool_forget_s``. ``host`` is the host label of ``gpu_info``.
    """

    interval_s: float
    simulate: int
    collect_gpu: bool
    collect_spool: bool
    spool: SpoolFolder
    spool_stale_s: float
    spool_forget_s: float
    host: str


def run(options: ExporterOptions, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; raises ``ExporterInputError`` and ``ExporterMissingError``."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Until the server takes them over: while a driver is slow to start, a signal ends it all the same.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: sys.exit(0))
    with listen(host, port) as sock:
        exporter = _Exporter(options, make_folder=True)
        exporter.start()
        exporter.wait(_FIRST_SAMPLE_S)
        print(_banner(options, exporter.page, sock), file=sys.stderr, flush=True)
        serve(App(exporter.page), sock)
    exporter.stop()


def render_once(options: ExporterOptions) -> str:
    """One page as text, after one pass of every collector. Nothing is left behind: a spool that is missing stays missing."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    exporter = _Exporter(options, make_folder=False)
    exporter.start()
    exporter.wait(_ONCE_S)
    body, _ = exporter.page.render()
    exporter.stop()
    return body.decode()


class _Exporter:
    """The collectors' loops and the page that shows what they know."""

    def __init__(self, options: ExporterOptions, *, make_folder: bool) -> None:
        self._source: GpuSource | None = None
        gpu: CollectorLoop[NodeSample] | None = None
        spool: CollectorLoop[SpoolSample] | None = None
        if options.collect_gpu:
            source: GpuSource = SimulatedSource(options.simulate) if options.simulate else NvmlSource(load_nvml())
            gpu = CollectorLoop("gpu", source.sample, interval_s=options.interval_s, doing=lambda: source.doing)
            self._source = source
        if options.collect_spool:
            read = Spool(options.spool, stale_s=options.spool_stale_s, forget_s=options.spool_forget_s).read
            if make_folder:
                # For all users where root runs the exporter; otherwise only this user's ranks could be meant.
                make_spool(options.spool, mode=SHARED_MODE if os.getuid() == 0 else PRIVATE_MODE)
            elif not os.path.lexists(options.spool.path):
                read = empty_sample  # what it would hold had it just been made
            spool = CollectorLoop("spool", read, interval_s=options.interval_s)
        simulated = self._source is not None and self._source.simulated
        self.page = Page(host=options.host, simulated=simulated, gpu=gpu, spool=spool)

    def start(self) -> None:
        for loop in (self.page.gpu, self.page.spool):
            if loop is not None:
                loop.start()

    def wait(self, timeout_s: float) -> None:
        for loop in (self.page.gpu, self.page.spool):
            if loop is not None:
                loop.wait_for_first_pass(timeout_s)

    def stop(self) -> None:
        if self.page.spool is not None:
            self.page.spool.stop(_STOP_S)
        # A driver that hangs would hang in the shutdown call too; then the end of the process has to do.
        if self.page.gpu is not None and self.page.gpu.stop(_STOP_S) and self._source is not None:
            self._source.close()


def _banner(options: ExporterOptions, page: Page, sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    lines = [f"rankscope exporter: listening on http://{shown}:{port}/metrics"]
    if page.gpu is not None:
        state = page.gpu.latest()
        count = "no sample yet" if state.last is None else f"{len(state.last.gpus)} GPUs"
        lines.append(f"  gpu: {count}{f' ({state.reason})' if state.reason and state.reason != count else ''}")
    if page.spool is not None:
        reason = page.spool.latest().reason
        lines.append(f"  spool: {options.spool.path}{f' ({reason})' if reason else ''}")
    if page.simulated:
        lines.append("  *** SIMULATED GPUs: the hardware values are invented ***")
    return "\n".join(lines)
