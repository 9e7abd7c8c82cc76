"""Task of the helper to sample the host's GPUs: one helper per host and run queries the node's exporter, the others stand by."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rankscope.base.problems import ProblemLog
from rankscope.profiler.helper.sampling.exporter_page import NO_GPU, PageTarget, ScrapeError, fetch, parse_target, read_page
from rankscope.profiler.helper.sampling.host_lock import HostLock
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.settings import EXPORTER_URL
from rankscope.runs.paths import host_dir
from rankscope.runs.records import HardwareSample
from rankscope.runs.segment_writer import JsonLinesWriter
from rankscope.runs.small_files import run_is_gone

SAMPLE_SECONDS: Final = 5.0
ELECTION_SECONDS: Final = 3.0
"""Interval at which helpers that stand by try to take over."""
CLOSING_SECONDS: Final = 1.0
"""Longest delay of the end by a slow disk."""

_ABSENT_MARK: Final = b"absent"
_ABSENT: Final = "absent"


class HardwareTask(HelperTask):
    """Task that stands by, and samples once it is elected."""

    def __init__(self, context: HelperContext) -> None:
        self._context = context
        self._due = 0.0
        self._lock: HostLock | None = None
        self._sampler: HardwareSampler | None = None
        self._target: PageTarget | None = None
        url = context.handover.settings.exporter_url
        if url is not None:
            try:
                self._target = parse_target(url)
            except ValueError as error:
                self._give_up(str(error))

    def tick(self) -> None:
        """Try to be elected when it is due. The elected helper samples on a thread."""
        if self._sampler is not None:
            if self._sampler.at_work:
                return
            self._sampler = None
        if self._target is None or not self._context.begun() or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + ELECTION_SECONDS
        if self._lock is None:
            # Only now, because before ``begun`` the run's id is only this rank's proposal.
            self._lock = HostLock(self._context.run().run_id)
        try:
            if not self._lock.take():
                return
        except OSError as error:
            self._give_up(f"cannot agree with the other ranks of this host ({error})")
            return
        self._sampler = HardwareSampler(self._target, self._lock, self._context, self._give_up)

    def _give_up(self, reason: str | None = None) -> None:
        self._target = None
        # No helper is elected to report a problem of all ranks, so the first rank of the host does.
        if reason is not None and not self._context.handover.rank.local_rank:
            self._context.report(f"no hardware samples: {reason}")

    def end(self, *, vanished: bool) -> None:  # noqa: ARG002  # sampling is of the host, not of the rank
        """Let another helper take over."""
        if self._sampler is not None:
            self._sampler.end()
        if self._lock is not None:
            self._lock.leave()


class HardwareSampler:
    """Thread that queries the exporter and passes samples to the log, until it is ended or no longer holds ``lock``.

    ``give_up`` is called when there is nothing left to sample, so no further election is needed.
    """

    def __init__(self, target: PageTarget, lock: HostLock, context: HelperContext, give_up: Callable[[], None]) -> None:
        handover = context.handover
        self._target = target
        self._lock = lock
        self._give_up = give_up
        self._report = context.report
        # Without a GPU and without an explicit exporter, its absence is recorded in the run but not printed.
        self._silent = handover.rank.device_kind == "cpu" and handover.settings.exporter_url == EXPORTER_URL
        self._history = AbsenceFilter(handover.rank.gpu_uuid)
        self._log = SampleLog(Path(handover.settings.run_dir), handover.rank.host, context.report)
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)
        self._thread.start()

    @property
    def at_work(self) -> bool:
        """True while it samples."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop, and wait a moment for pending writes, but not for a reply of the exporter."""
        with self._ending:
            if not self._ended.is_set():
                self._ended.set()
                self._log.close(CLOSING_SECONDS)
                self._lock.release()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001  # no error may stop the step records
            self._give_up()
            self._report(f"no more hardware samples: {type(error).__name__}: {error}")
        self.end()

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())) and self._lock.is_held():
            # The next sample is due ``SAMPLE_SECONDS`` after this one was, unless sampling took longer.
            due = max(due + SAMPLE_SECONDS, time.monotonic())
            rows = self._ask()
            if self._ended.is_set():
                return
            self._report_absence(rows)
            self._log.add(rows)
            if self._log.run_gone:
                self._give_up()
                return

    def _ask(self) -> list[HardwareSample]:
        try:
            page = fetch(self._target)
            now = time.time_ns()
            return self._history.rows_of(read_page(page, now), now)
        except ScrapeError as error:
            reason = f"no answer from the exporter at {self._target.shown}: {error}"
        except ValueError as error:
            reason = f"cannot read the page of the exporter at {self._target.shown}: {error}"
        return self._history.absent(reason, time.time_ns())

    def _report_absence(self, rows: list[HardwareSample]) -> None:
        reason = next((row.missing for row in rows if row.gpu_uuid is None), None)
        if reason is not None and not self._silent and self._lock.note(_ABSENT_MARK):
            self._report(f"{reason}; until that changes this host has no hardware samples")


class AbsenceFilter:
    """Filter of rows: every row with values passes, but a missing GPU or exporter only when that is new."""

    def __init__(self, expected: str | None) -> None:
        self._uuids = {} if expected is None else {_bare(expected): expected}
        self._missing: dict[str | None, str] = {}

    def absent(self, reason: str, unix_ns: int) -> list[HardwareSample]:
        """Return the rows for an exporter that did not answer."""
        if self._missing.get(None) == _ABSENT:
            return []
        self._missing = {None: _ABSENT}
        return [HardwareSample(unix_ns=unix_ns, missing=reason)]

    def rows_of(self, answer: list[HardwareSample], unix_ns: int) -> list[HardwareSample]:
        """Return the rows for an exporter that answered with the GPUs in ``answer``."""
        uuids = {_bare(row.gpu_uuid): row.gpu_uuid for row in answer if row.gpu_uuid is not None}
        rows = [
            HardwareSample(unix_ns=unix_ns, gpu_uuid=uuid, missing="the exporter does not show this GPU")
            for bare, uuid in self._uuids.items()
            if bare not in uuids
        ]
        if answer:
            self._missing.pop(None, None)
        else:
            rows.append(HardwareSample(unix_ns=unix_ns, missing=NO_GPU))
        self._uuids |= uuids
        return [row for row in (*answer, *rows) if self._is_new(row)]

    def _is_new(self, row: HardwareSample) -> bool:
        if row.missing is None:
            self._missing.pop(row.gpu_uuid, None)
            return True
        if self._missing.get(row.gpu_uuid) == row.missing:
            return False
        self._missing[row.gpu_uuid] = row.missing
        return True


def _bare(uuid: str) -> str:
    # CUDA reports the uuid of a MIG device without the prefix of MIG devices.
    return uuid.partition("-")[2]


MAX_PENDING: Final = 2000
"""Largest number of samples kept while the folder cannot be written: under 1 MB, and ten minutes of 16 GPUs."""
_BATCH: Final = 200


class SampleLog:
    """Appender to ``hosts/NAME``. Samples that cannot be written now are kept, within bounds, and retried with the next ones."""

    def __init__(self, run_dir: Path, host: str, report: Callable[[str], None], *, max_pending: int = MAX_PENDING) -> None:
        self._run_dir = run_dir
        self._folder = host_dir(run_dir, host)
        self._writer = JsonLinesWriter(self._folder, "gpu")
        self._report = report
        self._max_pending = max_pending
        self._pending: deque[HardwareSample] = deque()
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._problems = ProblemLog(report, each_reason=False)
        self.dropped = 0
        """Number of samples dropped because the folder could not be written for too long."""
        self.run_gone = False
        """True if the run directory was removed: there is nothing left to do."""
        self._thread = threading.Thread(target=self._work, name="hardware samples", daemon=True)
        self._thread.start()

    def add(self, samples: Iterable[HardwareSample]) -> None:
        """Queue samples. Never waits for the disk."""
        with self._guard:
            self._pending.extend(samples)
            self._bound()
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Write the queued samples, waiting at most ``seconds``."""
        self._closing = True
        self._wake.set()
        self._thread.join(seconds)
        lost = self.dropped + len(self._pending) + self._writer.unconfirmed
        if lost:
            self._report(f"{lost} hardware samples could not be written to {self._folder}")

    def _bound(self) -> None:
        while len(self._pending) > self._max_pending:
            self._pending.popleft()
            self.dropped += 1

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self._write()
        self._write()
        with suppress(OSError):
            self._writer.close()

    def _write(self) -> None:
        while batch := self._batch():
            try:
                if run_is_gone(self._run_dir):
                    # Writing now would create a folder that is not a run.
                    self.run_gone = True
                    continue
                self._writer.append(*batch)
            except OSError as error:
                with self._guard:
                    self._pending.extendleft(reversed(batch[self._writer.landed :]))
                    self._bound()
                reason = error.strerror or str(error)
                self._problems.report(f"cannot write hardware samples to {self._folder} ({reason}); will try again")
                return

    def _batch(self) -> list[HardwareSample]:
        with self._guard:
            return [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
