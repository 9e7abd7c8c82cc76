"""The Xid journal: every error of a GPU or NVSwitch, counted once, with the job on the GPU at that time; and resets of GPUs.

The same error arrives as an NVML event, as a line of the kernel log, and as the same line again after a restart (``matching``).
Only the line has the severity of an NVLink error, so its event is counted together with the line, or alone if none comes within
``SEVERITY_WAIT_S``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.base.process import boot_id as this_boot_id
from rankscope.exporter.source import GpuIdentity, Series, XidEvent
from rankscope.exporter.wall_clock import WallClock
from rankscope.exporter.xid.entry import SCHEMA, JournalSnapshot, KernelXid, Tally, XidEntry
from rankscope.exporter.xid.journal_file import JournalError, JournalFile, LoadedJournal
from rankscope.exporter.xid.matching import LATE_S, Key, is_repeat, key_of, may_be_same, merged
from rankscope.exporter.xid.series import RECENT_S, RecentErrors, recent_errors, series_of_gpu, series_of_switches
from rankscope.exporter.xid.tallies import NEW_CODES, Tallies
from rankscope.exporter.xids import GRADED

logger = logging.getLogger(__name__)

MAX_ENTRIES: Final = 1024
"""Maximum number of single errors kept; older ones are only counted."""

SEVERITY_WAIT_S: Final = 5.0
"""Seconds for which the event of an NVLink error waits for the line with its severity."""

_LIVE_S: Final = 10.0
_MAX_DELAY_S: Final = 120.0
_MAX_JOB_ID: Final = 128


class XidJournal:
    """Journal in ``folder``, or in memory only if that is None. ``job_at(uuid)`` returns the job now on a GPU without blocking.

    ``record`` and ``record_line`` change memory only and are thread-safe; ``flush`` writes. If the disk is full, read-only or
    locked by another exporter, the journal continues in memory, ``problem`` says why, and pending errors are written later.
    ``expects_lines``: the kernel log is read, so that an event's line will follow.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        job_at: Callable[[str], str | None],
        boot_id: str | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._problems = ProblemLog(
            partial(logger.warning, "Xids are not kept on disk: %s"), partial(logger.info, "Xids are kept on disk again")
        )
        self.skipped_lines = 0
        self.expects_lines = False
        self._job_at = job_at
        self._boot_id = this_boot_id() if boot_id is None else boot_id
        self._now = now
        self._monotonic = monotonic
        self._began_boot_s = monotonic()
        self._file = None if folder is None else JournalFile(folder)
        self._memory = threading.Lock()
        self._disk = threading.Lock()
        self._last_codes: dict[str, tuple[float, int]] = {}
        self._unsaved: dict[int, XidEntry] = {}
        self._entries: dict[int, XidEntry] = {}
        self._ids: dict[Key, dict[int, None]] = {}
        self._tallies = Tallies()
        self._last_id = self._read_last_id = 0
        self._last_seq = -1  # of the kernel log lines of this boot
        self._needs_rewrite = False
        self._uncounted: dict[int, None] = {}
        self._last_put_s = float("-inf")
        self._last_series: tuple[tuple[GpuIdentity, ...], RecentErrors, tuple[Series, ...]] | None = None
        self._clock = WallClock(now, monotonic)
        self._boot_unix_s = self._clock.boot_unix_s()
        if self._file is not None:
            with contextlib.suppress(JournalError):  # counting continues without the file; flush reports why
                self._start_from(self._file.load())
            self.flush()

    @property
    def durable(self) -> bool | None:
        """True if the last ``flush`` wrote everything to disk; None without a folder."""
        return None if self._file is None else self.problem is None

    @property
    def problem(self) -> str | None:
        """Reason why the last ``flush`` failed; None if it succeeded."""
        return self._problems.reason

    def record(self, uuid: str, pci_bus_id: str, event: XidEvent) -> None:
        """Record an NVML event, whose time is on the wall clock, a moment ago."""
        now, boot_now = self._now(), self._monotonic()
        delay_s = now - event.unix_s
        # If the wall clock was set in between, the difference is not the delay.
        boot_s = boot_now - (delay_s if 0 <= delay_s <= _MAX_DELAY_S else 0.0)
        xid = KernelXid(kind="xid", seen_by="nvml", pci_bus_id=pci_bus_id, code=event.xid, text="", seq=-1, boot_s=boot_s)
        self._record_report(xid, uuid)

    def record_reset(self, uuid: str, pci_bus_id: str, boot_s: float) -> None:
        """Record that the GPU was reset at ``boot_s`` on the monotonic clock."""
        unix_s = self._now() - (self._monotonic() - boot_s)
        with self._memory:
            entry = XidEntry(
                id=self._last_id + 1,
                kind="reset",
                pci_bus_id=pci_bus_id,
                uuid=uuid,
                code=0,
                unix_s=round(unix_s, 3),
                boot_id=self._boot_id,
                boot_s=round(boot_s, 3),
                seen_by=(),
            )
            self._update_entry(entry, unsaved=True)

    def record_line(self, line: KernelXid, uuid: str = "") -> None:
        """Record a line of the kernel log, unless it is known already. ``uuid`` is that of the GPU at its address, if known."""
        if line.seq > self._last_seq:
            self._record_report(line, uuid)

    def entries(self) -> list[XidEntry]:
        """Return the last errors in the order in which they were recorded."""
        with self._memory:
            return list(self._entries.values())

    def series(self, identities: Iterable[GpuIdentity]) -> tuple[Series, ...]:
        """Return the series of these GPUs and of all NVSwitches.

        Critical codes of a GPU start at zero; other codes appear when they first occur.
        """
        present = tuple(identities)
        with self._memory:
            if (boot_unix_s := self._clock.boot_unix_s()) != self._boot_unix_s:
                self._boot_unix_s, self._last_series = boot_unix_s, None
            if self._last_series is None or self._last_series[0] != present:
                self._identify({identity.pci_bus_id: identity.uuid for identity in present})
            self._count_unmatched()
            if self._tallies.show_due(self._monotonic()):
                self._last_series = None
            recent = self._recent()
            if self._last_series is None or self._last_series[:2] != (present, recent):
                of_gpus = (
                    line
                    for identity in present
                    for line in series_of_gpu(
                        identity.uuid,
                        self._tallies.of_gpu(identity.uuid),
                        last_code=self._last_codes.get(identity.uuid, (0.0, 0))[1],
                        recent={code: count for (uuid, code), count in recent.items() if uuid == identity.uuid},
                        last_reset_s=max((self._boot_time(), *map(self._time_of, self._tallies.of_gpu(identity.uuid, "reset")))),
                        time_of=self._time_of,
                    )
                )
                # Cached, because errors are rare and most pages are equal.
                self._last_series = present, recent, (*of_gpus, *series_of_switches(self._tallies.of_switches(), self._time_of))
            return self._last_series[2]

    def flush(self) -> None:
        """Write pending errors to disk. Never raises; ``problem`` says why it failed."""
        if self._file is None:
            return
        with self._disk:
            try:
                if not self._file.locked:
                    self._take_over(self._file)
                self._write(self._file)
            except JournalError as error:
                reason: str | None = str(error)
            else:
                reason = None
        self._problems.report(reason)

    def close(self) -> None:
        """Write pending errors and release the journal for another exporter."""
        self.flush()
        if self._file is not None:
            with self._disk:
                self._file.close()

    def _record_report(self, xid: KernelXid, uuid: str) -> None:
        boot_now = self._monotonic()
        age_s = max(0.0, boot_now - xid.boot_s)
        job_id = self._job_at(uuid) if uuid and age_s <= _LIVE_S else None
        with self._memory:
            self._last_seq = max(self._last_seq, xid.seq)
            twin = self._match(xid)
            if twin is not None:
                entry = merged(twin, self._entry(xid, uuid, job_id, age_s, number=twin.id))
            else:
                entry = self._entry(xid, uuid, job_id, age_s, number=self._last_id + 1)
            self._update_entry(entry, unsaved=True)

    def _entry(self, xid: KernelXid, uuid: str, job_id: str | None, age_s: float, *, number: int) -> XidEntry:
        return XidEntry(
            id=number,
            kind=xid.kind,
            pci_bus_id=xid.pci_bus_id,
            uuid=uuid,
            code=xid.code,
            severity=xid.severity,
            unix_s=round(self._now() - age_s, 3),
            boot_id=self._boot_id,
            boot_s=round(xid.boot_s, 3),
            seen_by=(xid.seen_by,),
            seq=xid.seq if xid.seq >= 0 else None,
            job_id=job_id[:_MAX_JOB_ID] if job_id else None,
            text=xid.text,
        )

    def _match(self, xid: KernelXid) -> XidEntry | None:
        """Return the first recorded error that this one may be a duplicate of; None if it is new."""
        entries = (self._entries[number] for number in self._ids.get(key_of(xid), {}))
        return next((entry for entry in entries if is_repeat(xid, entry)), None)

    def _update_entry(self, entry: XidEntry, *, unsaved: bool) -> None:
        """Add an error, or replace the entry with its id. It is counted once its device is known."""
        self._last_series = None
        before = self._entries.get(entry.id)
        if before is None and entry.id <= self._last_id:
            return  # already counted and evicted
        if before is None or entry.id in self._uncounted:
            self._uncounted[entry.id] = None
            if entry.device and not self._awaits_severity(entry):
                self._count(entry)
        if unsaved:
            self._unsaved[entry.id] = entry
            while len(self._unsaved) > 2 * MAX_ENTRIES:  # the next write rewrites the whole file, with all counts
                del self._unsaved[next(iter(self._unsaved))]
        self._keep_entry(entry)

    def _count(self, entry: XidEntry) -> None:
        self._last_series = None
        self._uncounted.pop(entry.id, None)
        device = entry.kind, entry.device
        waited = bool(self._tallies.waiting(device))
        self._tallies.add(entry, self._monotonic())
        if not waited and (waiting := self._tallies.waiting(device)):
            logger.warning(
                "%s has more than %d different codes within an hour: its further ones, from %s on, get their series later",
                entry.device,
                NEW_CODES,
                waiting[0],
            )
        self._remember_code(entry)

    def _awaits_severity(self, entry: XidEntry) -> bool:
        return (
            self.expects_lines
            and entry.code in GRADED
            and entry.seen_by == ("nvml",)
            and entry.boot_id == self._boot_id
            and self._monotonic() - entry.boot_s < SEVERITY_WAIT_S
        )

    def _count_unmatched(self) -> None:
        """Count the events whose line did not come in time."""
        for number in list(self._uncounted):
            entry = self._entries.get(number)
            if entry is None:
                del self._uncounted[number]
            elif entry.device and not self._awaits_severity(entry):
                self._count(entry)

    def _recent(self) -> RecentErrors:
        boot_now = self._monotonic()
        if boot_now - self._last_put_s > RECENT_S:
            return {}
        return recent_errors(self._entries.values(), boot_id=self._boot_id, boot_now=boot_now, now=self._now())

    def _keep_entry(self, entry: XidEntry) -> None:
        self._entries[entry.id] = entry
        self._last_put_s = self._monotonic()
        self._last_id = max(self._last_id, entry.id)
        if entry.boot_id == self._boot_id:
            self._ids.setdefault(key_of(entry), {})[entry.id] = None
            if entry.seq is not None:
                self._last_seq = max(self._last_seq, entry.seq)
        if len(self._entries) > MAX_ENTRIES:
            oldest = self._entries.pop(next(iter(self._entries)))
            if oldest.id in self._uncounted and oldest.device:
                self._count(oldest)
            self._uncounted.pop(oldest.id, None)
            self._ids.get(key_of(oldest), {}).pop(oldest.id, None)

    def _remember_code(self, entry: XidEntry) -> None:
        since_start = entry.boot_id == self._boot_id and entry.boot_s >= self._began_boot_s
        if entry.kind == "xid" and since_start and self._last_codes.get(entry.uuid, (0.0, 0))[0] <= entry.boot_s:
            self._last_codes[entry.uuid] = (entry.boot_s, entry.code)

    def _identify(self, uuids: dict[str, str]) -> None:
        """Add the uuid to entries of GPUs identified after the kernel log line; of this boot only, since GPUs may be moved."""
        for entry in [item for item in self._entries.values() if not item.device and item.boot_id == self._boot_id]:
            if uuid := uuids.get(entry.pci_bus_id):
                self._update_entry(msgspec.structs.replace(entry, uuid=uuid), unsaved=True)

    def _time_of(self, tally: Tally) -> float:
        """Return the time by the present wall clock, which may have been set since; that of an earlier boot precedes this one."""
        if tally.boot_id == self._boot_id:
            return round(self._boot_unix_s + tally.boot_s, 3)
        return min(tally.unix_s, self._boot_time())

    def _boot_time(self) -> float:
        return round(self._boot_unix_s, 3)

    def _start_from(self, loaded: LoadedJournal) -> None:
        snapshot = loaded.snapshot
        self._last_series = None
        damaged = loaded.skipped
        if len(damaged) not in (0, self.skipped_lines):
            logger.warning("%s: damaged lines, which are left out: %d, from line %d on", loaded.path, len(damaged), damaged[0])
        self.skipped_lines = len(damaged)
        self._entries, self._ids, self._uncounted = {}, {}, {}
        self._tallies = Tallies(snapshot.tallies)
        self._last_id = snapshot.last_id
        self._last_seq = snapshot.seq if snapshot.boot_id == self._boot_id else -1
        for entry in loaded.entries:
            if entry.id <= snapshot.last_id and entry.id not in self._entries:
                self._keep_entry(entry)  # already counted in the snapshot, if its GPU was known
                if not entry.device:
                    self._uncounted[entry.id] = None
            else:
                self._update_entry(entry, unsaved=False)
        self._tallies.show_all()
        self._read_last_id = self._last_id

    def _take_over(self, file: JournalFile) -> None:
        """Lock the file and merge its content, in which another exporter may have recorded the same errors."""
        file.lock()
        try:
            loaded = file.load()
        except JournalError:
            file.close()
            raise
        if not loaded.exists:
            self._needs_rewrite = True
            return
        with self._memory:
            own, began = list(self._unsaved.values()), self._read_last_id
            self._unsaved = {}
            self._start_from(loaded)
            taken_over = {number for number in self._entries if number > began}
            for entry in own:
                twin = self._entries.get(entry.id) if entry.id <= began else None
                if entry.id > began:
                    candidates = (self._entries[number] for number in self._ids.get(key_of(entry), {}) if number in taken_over)
                    candidates = (candidate for candidate in candidates if may_be_same(candidate, entry))
                    twin = next((candidate for candidate in candidates if abs(candidate.boot_s - entry.boot_s) <= LATE_S), None)
                if twin is None:
                    self._update_entry(msgspec.structs.replace(entry, id=self._last_id + 1), unsaved=True)
                else:
                    taken_over.discard(twin.id)
                    self._update_entry(merged(twin, entry), unsaved=True)

    def _write(self, file: JournalFile) -> None:
        with self._memory:
            if not (self._unsaved or self._needs_rewrite):
                return
            pending = dict(self._unsaved)
            too_much = len(pending) > MAX_ENTRIES or file.lines > 2 * MAX_ENTRIES or file.too_large
        if self._needs_rewrite or too_much or not file.append(pending.values()):
            with self._memory:
                snapshot, entries = self._snapshot(), list(self._entries.values())
            file.rewrite(snapshot, entries)
            self._needs_rewrite = False
        with self._memory:
            for number, entry in pending.items():
                if self._unsaved.get(number) is entry:
                    del self._unsaved[number]

    def _snapshot(self) -> JournalSnapshot:
        """Return the counts, which then include all entries of known devices."""
        for number in list(self._uncounted):
            entry = self._entries.get(number)
            if entry is not None and entry.device:
                self._count(entry)
        return JournalSnapshot(
            format=SCHEMA, last_id=self._last_id, boot_id=self._boot_id, seq=self._last_seq, tallies=self._tallies.all()
        )
