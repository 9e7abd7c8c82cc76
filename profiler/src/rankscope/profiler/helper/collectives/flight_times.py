"""Durations that the Flight Recorder of the rank has, from dumps that are asked for before its ring is overwritten."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from rankscope.profiler.flight_files import DURATIONS, done_file, dump_files
from rankscope.profiler.helper.collectives.times_source import NoTimesError, note_progress, progress_before
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.runs.durations import DurationBlock, DurationSource

if TYPE_CHECKING:
    from rankscope.analysis.hang.flight_records import Record

LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 60.0
"""Time without an answer after which that is reported; the dump needs the interpreter's lock."""
INTERVALS: Final = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Possible times between two dumps, in seconds. Each divides the next, and dumps are at multiples of them by the clock: the dumps
of all ranks hold the same collectives, even if not every one is in a dump."""
_USUAL_SECONDS: Final = 32.0
"""Longest of these times, unless the cost demands a longer one."""
_HALF: Final = 0.5
"""Share of the ring that may fill between two dumps."""
_SHARE: Final = 0.5
"""Share of the recorder's budget that dumps may cost: a dump holds the interpreter's lock, 20 to 40 µs for each collective."""

_REQUESTS: Final = 1
"""File descriptor of the helper's standard output, which the rank reads, see ``flight_dump``."""
_SIZES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_TRUE: Final = ("1", "y", "yes", "t", "true")


class FlightTimes:
    """Source of durations: dumps of the rank's Flight Recorder."""

    kind: DurationSource = "flight_recorder"

    def __init__(self, context: HelperContext, entries: int) -> None:
        self._context = context
        self._entries = entries
        self._asked_at: float | None = None
        self._late = False
        self._interval = INTERVALS[0]
        self._set_due()
        self._next, *still_open = progress_before(context.scratch) or [0]
        """Number of the next operation that no dump has had."""
        self._open = set(still_open)
        """Operations that had not ended in the last dump."""
        self._dumped: float | None = None
        self._lost_calls = self._lost_now = 0

    @classmethod
    def of_environment(cls, context: HelperContext) -> FlightTimes | None:
        """Return the source if the rank's environment, which the helper shares, has the recorder with timing on."""
        sizes = [value for name in _SIZES if (value := os.environ.get(name, "")).isdecimal()]
        timed = os.environ.get("TORCH_NCCL_ENABLE_TIMING", "").lower() in _TRUE
        if not sizes or not int(sizes[0]) or not timed or not stat.S_ISFIFO(os.fstat(_REQUESTS).st_mode):
            return None
        return cls(context, int(sizes[0]))

    def look(self, *, last: bool) -> Iterator[DurationBlock]:
        """Yield new durations, or ask for a dump. Raises ``NoTimesError``, ``OSError`` and ``ValueError``."""
        now = time.monotonic()
        if self._asked_at is None:
            if not last and time.time() >= self._due:
                os.set_blocking(_REQUESTS, False)
                os.write(_REQUESTS, f"{DURATIONS}\n".encode())
                self._asked_at = now
            return
        answer_file = done_file(self._context.scratch, DURATIONS)
        try:
            answer = answer_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            if now - self._asked_at > ANSWER_SECONDS and not self._late:
                self._late = True
                raise NoTimesError(f"no dump of the Flight Recorder within {ANSWER_SECONDS:.0f} s") from None
            return
        answer_file.unlink()
        asked_at, self._asked_at, self._late = self._asked_at, None, False
        yield from self._take(answer, asked_at)

    def _take(self, answer: str, asked_at: float) -> Iterator[DurationBlock]:
        """Yield the blocks of the dumps that were written after ``asked_at``; ``answer``: the rank's answer to the request."""
        from rankscope.analysis.durations.blocks import blocks_of
        from rankscope.analysis.durations.flight_recorder import calls_of_dump
        from rankscope.analysis.hang.files import read_dump
        from rankscope.base.errors import InputError

        cost, _, reason = answer.partition(" us")
        self._set_due()
        sources = dump_files(self._context.scratch, DURATIONS)
        if not sources:
            raise NoTimesError(reason or answer or "the Flight Recorder has nothing")
        backend, path = next(iter(sources.items()))
        try:
            dump = read_dump(path, backend=backend, whole_history=True)
        except InputError as error:
            raise NoTimesError(f"a dump of the Flight Recorder cannot be read: {error.reason}") from error
        finally:
            for source in sources.values():
                with suppress(OSError):
                    source.unlink()
        new = self._new(dump.records)
        last = dump.records[-1].record_id + 1 if dump.records else 0
        self._pace(asked_at, last, int(cost) if cost.isdecimal() else 0)
        self._next = max(self._next, last)
        note_progress(self._context.scratch, self._next, *self._open)
        lost, damaged = self._lost_now, dump.damaged
        for block in blocks_of(self.kind, calls_of_dump(dump, new)):
            yield msgspec.structs.replace(block, lost=lost, damaged=damaged)
            lost = damaged = 0

    def _new(self, records: Sequence[Record]) -> list[Record]:
        """Return the operations that have ended since the last dump, and count those that were overwritten before."""
        # The parts of a batch never end by themselves: the batch does, after them.
        ended: dict[tuple[str, str], int] = {}
        for record in records:
            if record.retired or record.raw.get("duration_ms") is not None:
                ended[record.backend, record.group] = record.record_id
        record_ids = {record.record_id for record in records}
        new, still = [], set[int]()
        for record in records:
            if record.record_id < self._next and record.record_id not in self._open:
                continue
            if record.batch is not None and not record.is_p2p:
                continue  # the record that closes the batch has the duration
            is_part = record.is_p2p and record.record_id < ended.get((record.backend, record.group), -1)
            if record.retired or record.raw.get("duration_ms") is not None or is_part:
                new.append(record)
            else:
                still.add(record.record_id)
        first = records[0].record_id if records else self._next
        # What was there before the first dump is of no interest.
        skipped = max(0, first - self._next) if self._dumped is not None else 0
        self._lost_now = skipped + len(self._open - record_ids)
        self._lost_calls += self._lost_now
        self._open = still
        return new

    def _pace(self, asked_at: float, last: int, cost_us: int) -> None:
        """Set the interval: short enough that the ring is not overwritten, if that does not exceed the share of the budget."""
        before, self._dumped = self._dumped, asked_at
        if before is not None:
            a_second = max(1, last - self._next) / max(0.1, asked_at - before)
            lasts = [interval for interval in INTERVALS if interval <= min(_USUAL_SECONDS, _HALF * self._entries / a_second)]
            least = cost_us / 1e6 / (_SHARE * self._context.handover.settings.budget)
            self._interval = max(
                next((interval for interval in INTERVALS if interval >= least), INTERVALS[-1]), *lasts[-1:], INTERVALS[0]
            )
        self._set_due()

    def _set_due(self) -> None:
        self._due = (time.time() // self._interval + 1) * self._interval

    def wait_seconds(self) -> float:
        """Return the time until the next look."""
        return LOOK_SECONDS

    def warning(self) -> str | None:
        """Return what was lost."""
        if not self._lost_calls:
            return None
        return (
            f"{self._lost_calls} durations of collectives were overwritten before a dump, as the budget allows one each "
            f"{self._interval:.0f} s; the others are recorded"
        )

    def close(self) -> None:
        """Leave nothing behind: the scratch folder is removed with the helper."""
