"""Assembly of the collectors: the fleet, the collector loops, and the page that renders their results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rankscope.exporter.fleet.inventory import Inventory
from rankscope.exporter.fleet.nursery import Nursery
from rankscope.exporter.fleet.nursery_process import freeze_gc
from rankscope.exporter.fleet.nvml_fleet import NvmlFleet
from rankscope.exporter.fleet.timeouts import FleetTimeouts
from rankscope.exporter.jobs.collector import JobsCollector
from rankscope.exporter.loop import CollectorLoop
from rankscope.exporter.nvml.processes import JOBS_INTERVAL_S
from rankscope.exporter.pages.page import MetricsPage, SeriesLoop
from rankscope.exporter.settings import ExporterSettings, default_state_dir
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.spool.folder import PRIVATE_MODE, SHARED_MODE, SpoolFolder, default_spool, make_spool
from rankscope.exporter.spool.reading import Spool, SpoolSample
from rankscope.exporter.xid.collector import XidCollector
from rankscope.exporter.xid.journal import XidJournal
from rankscope.exporter.xid.kernel_log import KernelLog

_STOP_S: Final = 0.3


class Assembly:
    """All collectors and the page.

    Args:
        settings: the daemon's settings.
        nursery: starts the GPUs' processes; None without real GPUs.
        lasting: keep state on disk and create the spool (a daemon, as opposed to ``--once``).
        on_fatal: called from another thread with an exit status and the reason, if only a restart helps.

    Raises:
        MissingError: the kubelet is to be queried, and a package that this needs is not installed.
    """

    def __init__(
        self,
        settings: ExporterSettings,
        nursery: Nursery | None,
        *,
        lasting: bool,
        on_fatal: Callable[[int, str], None] = lambda _status, _reason: None,
    ) -> None:
        self._settings = settings
        self._lasting = lasting
        self._state_dir = (settings.state_dir or default_state_dir()) if lasting and not settings.simulate else None
        collectors, interval_s = settings.collectors, settings.interval_s
        self.spool_folder: Path | None = None
        self._fleet: NvmlFleet | SimulatedFleet | None = None
        self._spool = CollectorLoop("spool", self._make_spool(), interval_s=interval_s) if "spool" in collectors else None
        self._xid: XidCollector | None = None
        self._jobs: JobsCollector | None = None
        jobs_loop: SeriesLoop | None = None
        xid_loop: SeriesLoop | None = None
        if "gpu" in collectors:
            if "jobs" in collectors and not settings.simulate:  # no job holds a simulated GPU
                jobs = self._jobs = self._make_jobs()
                jobs_loop = CollectorLoop("jobs", lambda: jobs.read(fleet.state()), interval_s=max(interval_s, JOBS_INTERVAL_S))
            if "xid" in collectors:
                xid = self._xid = self._make_xid()
                xid_loop = CollectorLoop("xid", lambda: xid.read(fleet.state()), interval_s=interval_s)
            fleet = self._fleet = self._make_fleet(nursery, on_fatal)
        self.page = MetricsPage(
            settings.host, self._fleet, spool=self._spool, jobs=jobs_loop, xid=xid_loop, collectors=collectors
        )
        # These need the GPUs: a pass before the fleet's first one would leave the first scrape without them.
        self._late: list[CollectorLoop[Any]] = [loop for loop in (jobs_loop, xid_loop) if loop is not None]
        self._loops: list[CollectorLoop[Any]] = [*([self._spool] if self._spool is not None else []), *self._late]

    def start(self) -> None:
        """Start the threads of the fleet and of the spool; ``wait`` starts the others."""
        if self._lasting:
            # All existing objects stay and pages create no reference cycles: garbage collection would find nothing.
            freeze_gc()
        if self._fleet is not None:
            self._fleet.start()
        if self._spool is not None:
            self._spool.start()

    def wait(self, timeout_s: float) -> None:
        """Start the remaining collectors and wait until each has succeeded or failed once, at most ``timeout_s``."""
        until = time.monotonic() + timeout_s
        if isinstance(self._fleet, NvmlFleet):
            self._fleet.wait_for_first_pass(timeout_s)
        for loop in self._late:
            loop.start()
        for loop in self._loops:
            loop.wait_for_first_pass(max(0.0, until - time.monotonic()))

    def stop(self) -> None:
        """End the GPUs' processes and close the journal. Processes and threads that are stuck are left behind."""
        if self._fleet is not None:
            self._fleet.stop()
        # Close the journal only when no thread can still write to it.
        ended = [loop.stop(_STOP_S) for loop in self._loops]
        if self._xid is not None and all(ended):
            self._xid.close()
        if self._jobs is not None:
            self._jobs.close()

    def _make_fleet(self, nursery: Nursery | None, on_fatal: Callable[[int, str], None]) -> NvmlFleet | SimulatedFleet:
        settings = self._settings
        if settings.simulate is not None:
            return SimulatedFleet(settings.simulate, collectors=settings.collectors, interval_s=settings.interval_s)
        assert nursery is not None
        return NvmlFleet(
            nursery,
            collectors=settings.collectors,
            interval_s=settings.interval_s,
            inventory=Inventory(self._state_dir),
            expected_gpus=settings.expected_gpus,
            on_fatal=on_fatal,
            on_xid=self._xid.on_xid if self._xid is not None else lambda *_: None,
            on_reset=self._xid.on_reset if self._xid is not None else lambda *_: None,
            exit_when_stale=settings.restart_on_stale_driver,
            timeouts=FleetTimeouts(call_s=settings.call_timeout_s),
        )

    def _make_xid(self) -> XidCollector:
        settings = self._settings
        folder = self._state_dir / "xids" if self._state_dir is not None else None
        kernel_log = KernelLog() if settings.xid_kernel_log and not settings.simulate else None
        job_at = self._jobs.job_at if self._jobs is not None else lambda _: None
        return XidCollector(XidJournal(folder, job_at=job_at), kernel_log)

    def _make_jobs(self) -> JobsCollector:
        settings = self._settings
        return JobsCollector(
            slurm_dir=settings.jobs_slurm_dir,
            podresources_socket=settings.jobs_podresources_socket,
            ranks=self._ranks,
            show_users=settings.jobs_users,
            show_pods=settings.jobs_pods,
        )

    def _ranks(self) -> SpoolSample | None:
        return self._spool.latest().value if self._spool is not None else None

    def _make_spool(self) -> Callable[[], SpoolSample]:
        settings = self._settings
        folder = SpoolFolder(settings.spool) if settings.spool is not None else default_spool(make=self._lasting)
        self.spool_folder = folder.path
        if self._lasting:
            # Shared by all users if root runs the exporter; otherwise only for this user's ranks.
            make_spool(folder, mode=SHARED_MODE if os.getuid() == 0 else PRIVATE_MODE)
        elif not os.path.lexists(folder.path):
            return SpoolSample  # the result of a new, empty spool
        return Spool(folder, stale_s=settings.spool_stale_s, forget_s=settings.spool_forget_s).read
