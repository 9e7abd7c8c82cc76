"""Writer of one rank's part of the run directory: records that cannot be written now are kept, within bounds, and retried."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.profiler.handover import Handover
from rankscope.profiler.starts import is_alive, is_earlier, is_over, is_same_job, is_same_start
from rankscope.runs.paths import RANK_STREAMS, RankStream, activity_file, attempt_dir, attempt_file, rank_dir, rank_file, run_file
from rankscope.runs.records import AttemptInfo, RankActivity, RankInfo, RunInfo, StepRecord
from rankscope.runs.segment_writer import JsonLinesWriter, RowWriter, SegmentWriter
from rankscope.runs.segments import UNDECODABLE
from rankscope.runs.small_files import create_attempt, create_record, create_run, overwrite_in_place, run_is_gone, write_record
from rankscope.runs.step_columns import event_of, pack_row

MAX_PENDING: Final = 20_000
"""Largest number of records kept while the folder cannot be written; about 6 MB."""
RETRY_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 2.0
"""Interval of checks that the run still exists, while only open files are written."""
_BATCH: Final = 500
PATIENCE: Final = 3
"""Number of failures other than disk errors after which the next records of a stream are dropped."""

_T = TypeVar("_T", bound=msgspec.Struct)

RETAINED: Final[dict[RankStream, float]] = {
    "steps": 5 / 8,
    "events": 1 / 8,
    "windows": 1 / 32,
    "collectives": 1 / 16,
    "kernels": 1 / 64,
    "stacks": 1 / 64,
    "durations": 1 / 16,
}
"""Shares of ``retain_bytes``. Steps have the largest, because they are the history of a run; of windows the last matter."""
RETAINED_TRACES: Final = 1 / 16
"""Share of ``retain_bytes`` for raw traces that were kept without a request."""


class RunStore:
    """Writer of one rank's files. No method raises for disk errors. ``joined`` is called with the attempt that has the rank.

    ``add`` may be called on another thread than the other methods, which a slow filesystem may block; see ``writer_thread``.
    """

    def __init__(self, handover: Handover, *, joined: Callable[[int], None] = lambda _attempt: None) -> None:
        self._handover = handover
        self._joined = joined
        self._run_dir = Path(handover.settings.run_dir)
        self._info, self._expired = handover.rank, dict[str, int]()
        """``rank.json`` as last given, and the counts of records that expired before this helper began."""
        self._written = handover.rank
        """``rank.json`` as last written."""
        self._place(handover.rank.attempt)
        self._pending: dict[RankStream, deque[bytes]] = {stream: deque() for stream in RANK_STREAMS}
        self._lock = threading.Lock()
        self.begun = False
        """True once this rank has its place in the run directory."""
        self.refused = False
        """True if this rank has no place in the run directory, or has lost it; nothing is written then."""
        self._problems = ProblemLog(_report, each_reason=False)
        self._retry_at = self._look_at = 0.0
        self.failing = False
        """True if the last attempt to write failed."""
        self.moved_at = time.monotonic()
        """Monotonic time of the last successful write."""
        self.run = handover.run
        """Identity of the run; that of its file, once this or another rank has written it."""
        self.dropped = 0
        """Number of dropped records: the folder could not be written for too long, or they could not be encoded or written."""
        self.unwritten = 0
        """Number of steps at the end that were given up."""
        self.reason = ""
        """Reason why the last attempt to write failed."""
        self._unconfirmed = self._unconfirmed_reported = 0
        self._failed: dict[RankStream, int] = dict.fromkeys(RANK_STREAMS, 0)
        """Number of failures other than disk errors since the last success, per stream."""

    def _place(self, attempt: int) -> None:
        """Set the attempt to write into; only before anything is written."""
        self.attempt = attempt
        """Attempt of the rank; it is certain once ``begun``."""
        self.folder = rank_dir(self._run_dir, attempt, self._handover.rank.rank)
        retain = self._handover.settings.retain_bytes
        limits = {stream: None if retain is None else round(retain * RETAINED[stream]) for stream in RANK_STREAMS}
        self._writers: dict[RankStream, SegmentWriter] = {
            stream: JsonLinesWriter(self.folder, stream, retain_bytes=limits[stream]) for stream in RANK_STREAMS
        }
        self._writers["steps"] = RowWriter(
            self.folder, rank=self._handover.rank.rank, attempt=attempt, retain_bytes=limits["steps"]
        )

    def add(self, stream: RankStream, *records: msgspec.Struct | bytes) -> None:
        """Queue records (structs, or bytes as the stream's writer encodes them); ``flush`` writes them."""
        encoded = []
        for record in records:
            try:
                encoded.append(record if isinstance(record, bytes) else self._writers[stream].encode(record))
            except Exception as error:  # noqa: BLE001  # one malformed record must not cost the others
                self.lose(1, error)
        with self._lock:
            if not self.refused:
                self._pending[stream].extend(encoded)
                self._keep_bounds(stream)

    def waiting(self, stream: RankStream) -> int:
        """Return the number of records of ``stream`` that are not written yet. On any thread."""
        with self._lock:
            return len(self._pending[stream])

    def add_step(self, record: StepRecord) -> None:
        """Queue a step record: its row, and before it its event, if there is one."""
        try:
            row, event = pack_row(record), event_of(record)
        except Exception as error:  # noqa: BLE001  # as above
            self.lose(1, error)
            return
        if event is not None:
            self.add("events", event)
        self.add("steps", row)

    def _keep_bounds(self, stream: RankStream) -> None:
        while sum(map(len, self._pending.values())) > MAX_PENDING:
            # Drop the oldest: the records written before the failure are the most likely to explain them.
            (self._pending[stream] or max(self._pending.values(), key=len)).popleft()
            self.dropped += 1

    def flush(self, *, now: bool = False) -> bool:
        """Write the pending records; without ``now``, not shortly after a failure. Return whether nothing is left."""
        if self.refused:
            return True
        if not now and time.monotonic() < self._retry_at:
            return False
        if self.begun and not any(self._pending.values()):
            return True
        try:
            if not self._has_place(makes=self._makes()):
                return True
            for stream in RANK_STREAMS:
                while batch := self._take(stream):
                    self._append(stream, batch)
            if self._counts_changed:
                self._write_rank(self._info)
        except OSError as error:
            self._fail(error.strerror or str(error))
            return False
        return True

    @property
    def expired(self) -> dict[str, int]:
        """Number of records removed by the retention limit, per stream."""
        counts = {stream: self._expired.get(stream, 0) + writer.expired for stream, writer in self._writers.items()}
        return {stream: count for stream, count in counts.items() if count}

    def give_up(self) -> int:
        """Drop what is still to be written, and count it. Returns the number of steps."""
        with self._lock:
            self.unwritten += len(self._pending["steps"])
            for queue in self._pending.values():
                self.dropped += len(queue)
                queue.clear()
            return self.unwritten

    def lose(self, records: int, error: Exception) -> None:
        """Count records dropped for another reason than a disk error, and report it once. On any thread."""
        with self._lock:
            self.dropped += records
        reason = f"{type(error).__name__}: {error}"
        text = f"rank {self._handover.rank.rank}: {records} record(s) dropped ({reason}); such are counted from now on"
        self._problems.report(text, "losses")

    def completed(self, info: RankInfo) -> RankInfo:
        """Return ``info`` with the losses of this writer added."""
        return msgspec.structs.replace(
            info,
            dropped_records=info.dropped_records + self.dropped,
            unwritten_steps=self.unwritten,
            unconfirmed_records=self._unconfirmed + sum(writer.unconfirmed for writer in self._writers.values()),
            expired_records=self.expired,
        )

    @property
    def _counts_changed(self) -> bool:
        return self.completed(self._info) != self._written

    def _take(self, stream: RankStream) -> list[bytes]:
        with self._lock:
            queue = self._pending[stream]
            return [queue.popleft() for _ in range(min(_BATCH, len(queue)))]

    def _append(self, stream: RankStream, batch: list[bytes]) -> None:
        try:
            self._writers[stream].append(*batch)
        except Exception as error:
            # Records that were written before the error must not be written twice.
            unwritten = batch[self._writers[stream].landed :]
            self._failed[stream] += not isinstance(error, OSError)
            if self._failed[stream] >= PATIENCE:
                # Otherwise they would block all records after them.
                self._failed[stream] = 0
                self.lose(len(unwritten), error)
                return
            with self._lock:
                self._pending[stream].extendleft(reversed(unwritten))
                self._keep_bounds(stream)
            raise
        self._failed[stream] = 0
        self._moved()

    def _moved(self) -> None:
        self.failing, self.moved_at = False, time.monotonic()

    def _makes(self) -> bool:
        """Return whether the pending records need a new file."""
        return self._counts_changed or any(queue and self._writers[stream].opens for stream, queue in self._pending.items())

    def _has_place(self, *, makes: bool) -> bool:
        """Take this rank's place in the run directory, or check that it still exists. Raises ``OSError``.

        ``makes``: a file will be created, and missing folders for it.
        """
        if not self.begun:
            self._begin()
        elif makes or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            if run_is_gone(self._run_dir):
                # Writing now would create an unreadable run that blocks the next one.
                self._refuse(f"{self._run_dir} was removed; this process is no longer recorded")
        return not self.refused

    def _refuse(self, reason: str) -> None:
        with self._lock:
            self.refused = True
            for queue in self._pending.values():
                queue.clear()
        _report(f"rank {self._handover.rank.rank}: {reason}")

    def _begin(self) -> None:
        create_run(self._run_dir, self._handover.run)
        with suppress(*UNDECODABLE):
            # Another rank, perhaps under another launcher, may have created the run first.
            self.run = msgspec.json.decode(run_file(self._run_dir).read_bytes(), type=RunInfo)
        # A rank without a common restart count moves on to the attempt of this start, or creates it.
        while not self._join():
            self._place(self.attempt + 1)

    def _join(self) -> bool:
        """Take the rank's place in this attempt, or be refused. Return False if the next attempt must be tried instead."""
        own = msgspec.structs.replace(self._handover.attempt, attempt=self.attempt)
        if not create_attempt(self._run_dir, own):
            first = _read(attempt_file(self._run_dir, self.attempt), AttemptInfo)
            if first is not None and self._passes(own, first):
                return False
            if first is not None and first.world_size != own.world_size:
                if self._is_over():
                    return False
                of = f"{first.world_size} rank(s), and this process is one of {own.world_size}"
                self._refuse(f"attempt {self.attempt} of {self._run_dir} is that of another job, of {of}; it is not recorded")
                return True
        file, rank = self.folder / "rank.json", msgspec.structs.replace(self._handover.rank, attempt=self.attempt)
        if not create_record(file, rank):
            recorded = _read(file, RankInfo)
            if recorded is None or not _is_of(rank, recorded):
                is_elastic = own.start_key is not None and recorded is not None and not is_alive(recorded, rank.host)
                if is_elastic or (recorded is not None and (is_over(recorded, rank.host) or _is_process_of(rank, recorded))):
                    return False  # an earlier start, or an earlier program of the same command
                by = "" if recorded is None else f" (pid {recorded.pid} on {recorded.host})"
                self._refuse(
                    f"rank {rank.rank} is already recorded in {self._run_dir}{by}; this process is not: "
                    "give this program its own --run-dir"
                )
                return True
            # Counts of a killed predecessor of this helper are continued.
            self._written, self._expired, self._unconfirmed = recorded, recorded.expired_records, recorded.unconfirmed_records
            self._info = recorded
        else:
            self._info = self._written = rank
        self._joined(self.attempt)
        self.begun = True
        self._moved()
        return True

    def _is_over(self) -> bool:
        """Return whether no rank of the attempt goes on, as far as this host can tell."""
        ranks = [_read(file, RankInfo) for file in attempt_dir(self._run_dir, self.attempt).glob("ranks/*/rank.json")]
        return all(rank is not None and is_over(rank, self._handover.rank.host) for rank in ranks)

    def _passes(self, own: AttemptInfo, first: AttemptInfo) -> bool:
        """Return whether an existing attempt belongs to another job, or to an earlier start of this one."""
        if (same := is_same_start(own, first)) is not None:
            return not same
        if own.start_key is None:
            return False
        if not is_same_job(own, first):
            return True
        rank = self._handover.rank
        if _is_of(rank, _read(self.folder / "rank.json", RankInfo)):
            return False
        # The two most telling ranks: the job's first, and the first on this host. Thousands of ranks may do this check.
        numbers = {0, rank.rank - (rank.local_rank or 0)} - {rank.rank}
        infos = [_read(rank_file(self._run_dir, self.attempt, number), RankInfo) for number in numbers]
        others = [info for info in infos if info is not None]
        return is_earlier(first, others, host=rank.host, began_unix_ns=self._handover.process_unix_ns)

    def write_rank(self, info: RankInfo) -> bool:
        """Rewrite ``rank.json``. Return False if it must be retried later."""
        if self.refused:
            return True
        if not self.begun:
            return False
        try:
            if not self._has_place(makes=True):
                return True
            self._write_rank(info)
            self._moved()
        except OSError as error:
            self._fail(error.strerror or str(error))
            return False
        return True

    def _write_rank(self, info: RankInfo) -> None:
        written, file = self.completed(info), self.folder / "rank.json"
        try:
            write_record(file, written)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A rank whose end is not recorded would look as if it went on.
            overwrite_in_place(file, msgspec.json.encode(written))
        self._info, self._written = info, written

    def write_activity(self, activity: RankActivity | None) -> None:
        """Rewrite ``activity.json``, or remove it. A failure is not repeated: it is rewritten soon."""
        if not self.begun or self.refused:
            return
        file = activity_file(self._run_dir, self.attempt, self._handover.rank.rank)
        with suppress(OSError):
            if activity is None:
                file.unlink(missing_ok=True)
            elif self._has_place(makes=True):
                write_record(file, activity)

    def fail(self, error: Exception) -> None:
        """Handle another error during writing as if the folder could not be written."""
        self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self.failing, self.reason, self._retry_at = True, reason, time.monotonic() + RETRY_SECONDS
        self._problems.report(f"rank {self._handover.rank.rank}: cannot write to {self._run_dir} ({reason}); will try again")

    def close(self) -> None:
        """Close the files, and report how many records the filesystem accepted but, as far as it reports, did not keep.

        For the end; a later write opens new files.
        """
        for writer in self._writers.values():
            with suppress(OSError):
                writer.close()
        lost = sum(writer.unconfirmed for writer in self._writers.values())
        if lost > self._unconfirmed_reported:
            self._unconfirmed_reported = lost
            rank = self._handover.rank.rank
            _report(f"rank {rank}: up to {lost} records may be missing from {self._run_dir}: it took them and failed")


def _read(file: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, *UNDECODABLE):
        return None


def _is_of(rank: RankInfo, recorded: RankInfo | None) -> bool:
    """Return whether ``rank`` is the process described by ``recorded``: then another helper of it began, and was killed."""
    process = rank.host, rank.pid, rank.start_unix_ns
    return recorded is not None and (recorded.host, recorded.pid, recorded.start_unix_ns) == process


def _is_process_of(rank: RankInfo, recorded: RankInfo) -> bool:
    """Return whether the process of ``rank`` is that of ``recorded``, in which it had this place before."""
    return (recorded.host, recorded.pid) == (rank.host, rank.pid)


def _report(message: str) -> None:
    with suppress(OSError, ValueError):
        print(f"rankscope: {message}", file=sys.stderr, flush=True)
