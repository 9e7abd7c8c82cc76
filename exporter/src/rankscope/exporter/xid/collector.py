"""The collector ``xid``: NVML's events and the kernel log into the journal, the journal's counts onto the page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from rankscope.base.problems import ProblemLog
from rankscope.exporter.source import FleetState, GpuIdentity, Series, XidEvent
from rankscope.exporter.xid.journal import XidJournal
from rankscope.exporter.xid.kernel_log import KernelLog

logger = logging.getLogger(__name__)


class XidCollector:
    """Collector of Xids and SXids. ``kernel_log`` is None if the kernel log is not to be read."""

    def __init__(self, journal: XidJournal, kernel_log: KernelLog | None) -> None:
        self._journal = journal
        self._kernel_log = kernel_log
        self._problems = ProblemLog(
            partial(logger.warning, "the kernel log cannot be read, so Xids come from NVML only: %s"),
            partial(logger.info, "the kernel log can be read again"),
        )
        self._defects = ProblemLog(partial(logger.warning, "an Xid or a reset is not recorded: %s"))

    def on_xid(self, identity: GpuIdentity, event: XidEvent) -> None:
        """Record an NVML event. Call it once per event; thread-safe, and does not wait for the disk."""
        self._isolated(self._journal.record, identity.uuid, identity.pci_bus_id, event)

    def on_reset(self, identity: GpuIdentity, monotonic_s: float) -> None:
        """Record that a GPU answers again after a reset; thread-safe, and does not wait for the disk."""
        self._isolated(self._journal.record_reset, identity.uuid, identity.pci_bus_id, monotonic_s)

    def read(self, state: FleetState) -> tuple[Series, ...]:
        """Read the kernel log, write new errors to the journal, and return the series."""
        identities = [gpu.identity for gpu in state.gpus]
        own: list[Series] = []
        if self._kernel_log is not None:
            uuids = {identity.pci_bus_id: identity.uuid for identity in identities}
            for line in self._kernel_log.read():
                self._isolated(self._journal.record_line, line, uuids.get(line.pci_bus_id, "") if line.kind == "xid" else "")
            self._problems.report(self._kernel_log.problem)
            self._journal.expects_lines = self._kernel_log.problem is None
            own += [
                Series("rankscope_exporter_kernel_log_readable", float(self._kernel_log.problem is None)),
                Series("rankscope_exporter_kernel_log_lost_lines_total", self._kernel_log.lost),
            ]
        series = self._journal.series(identities)
        self._journal.flush()
        if (durable := self._journal.durable) is not None:
            own += [
                Series("rankscope_exporter_xid_journal_durable", float(durable)),
                Series("rankscope_exporter_xid_journal_skipped_lines", self._journal.skipped_lines),
            ]
        return (*series, *own)

    def _isolated(self, record: Callable[..., None], *args: object) -> None:
        """Call ``record``; an unforeseen exception costs this record only, neither the others nor the thread of the GPUs."""
        try:
            record(*args)
        except Exception as error:  # noqa: BLE001
            self._defects.report(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Write pending errors and release the journal for another exporter."""
        if self._kernel_log is not None:
            self._kernel_log.close()
        self._journal.close()
