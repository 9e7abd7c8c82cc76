"""A copy of a recorded run that grows as the run did while it was recorded.

A record appears in the copy at the time at which its step, window or collective ended. The recorder itself writes up to a second
later, and some seconds later after a profiled step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.errors import InputError
from rankscope.runs.paths import RankStream, Stream, attempt_file, host_dir, rank_dir, segment
from rankscope.runs.reader import RunReader
from rankscope.runs.run_files import open_run_file
from rankscope.runs.segments import MAX_LINE_BYTES, list_segments
from rankscope.runs.small_files import append_whole, create_run, make_folder, write_record
from rankscope.runs.step_columns import header, row_dtype
from rankscope.runs.step_segments import Rows, Segment

READ_BYTES: Final = 32 * 1024
"""Bytes of one read, kept small because a thousand ranks have three streams each."""

_T = TypeVar("_T", bound=msgspec.Struct)


class LinesInTime(Generic[_T]):
    """Lines of ``segments`` in order, each with the time at which it was written.

    ``moment`` returns that time for a record of ``kind``, in unix nanoseconds. A line that is no record gets the time of the line
    before it, so that readers see the same damage. Segments that cannot be read are added to ``unreadable``.
    """

    def __init__(self, segments: Sequence[Path], kind: type[_T], moment: Callable[[_T], int], *, unreadable: list[Path]) -> None:
        self._unreadable = unreadable
        self._segments = deque(segments)
        self._at = 0
        self._decoder = msgspec.json.Decoder(kind)
        self._moment = moment
        self._last_unix_ns = 0
        self._ready: deque[tuple[int, bytes]] = deque()

    @property
    def next_unix_ns(self) -> int | None:
        """Time of the next line; ``None`` after the last."""
        while not self._ready and self._segments:
            self._read()
        return self._ready[0][0] if self._ready else None

    def until(self, unix_ns: int) -> bytes:
        """Take the lines up to that time, each with its newline."""
        lines: list[bytes] = []
        while (moment := self.next_unix_ns) is not None and moment <= unix_ns:
            lines.append(self._ready.popleft()[1])
        return b"".join(lines)

    def _read(self) -> None:
        """Read more of the first remaining segment; drop the segment when it has no further complete line."""
        try:
            with open_run_file(self._segments[0]) as file:
                file.seek(self._at)
                data = file.read(READ_BYTES)
                if len(data) == READ_BYTES and b"\n" not in data:
                    data += file.read(MAX_LINE_BYTES)
        except OSError:
            self._unreadable.append(self._segments[0])
            data = b""
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._at += len(complete_lines)
        if not complete_lines:
            self._segments.popleft()
            self._at = 0
        for line in complete_lines.split(b"\n")[:-1]:
            self._ready.append((self._when(line), line + b"\n"))

    def _when(self, line: bytes) -> int:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            self._last_unix_ns = max(self._last_unix_ns, self._moment(self._decoder.decode(line)))
        return self._last_unix_ns


class RowsInTime:
    """Intact rows of segments of step records in order, each with the time at which it was written; as ``LinesInTime``."""

    def __init__(self, segments: Sequence[Path], *, unreadable: list[Path]) -> None:
        self._blocks = _blocks(segments, unreadable)
        self._rows = np.empty(0, row_dtype())
        self._ends = np.empty(0, np.int64)
        self._last_unix_ns = 0

    @property
    def next_unix_ns(self) -> int | None:
        """Time of the next row; ``None`` after the last."""
        while not len(self._rows):
            rows = next(self._blocks, None)
            if rows is None:
                return None
            self._rows, self._ends = rows, self._ends_of(rows)
        return int(self._ends[0])

    def until(self, unix_ns: int) -> bytes:
        """Take the rows up to that time."""
        parts: list[bytes] = []
        while (moment := self.next_unix_ns) is not None and moment <= unix_ns:
            count = int(np.searchsorted(self._ends, min(unix_ns, _LAST_NS), side="right"))
            parts.append(self._rows[:count].tobytes())
            self._rows, self._ends = self._rows[count:], self._ends[count:]
        return b"".join(parts)

    def _ends_of(self, rows: Rows) -> NDArray[np.int64]:
        """Times of rows, none before that of the row before it."""
        if not len(rows):
            return np.empty(0, np.int64)
        starts = np.clip(rows["start_unix_ns"], 0, _LAST_NS)
        # Limited before it is multiplied: a damaged record may be infinitely long.
        walls_ns = (np.clip(np.nan_to_num(rows["wall_us"]), 0, _LAST_NS / 1000) * 1000).astype(np.int64)
        ends = starts + np.minimum(walls_ns, _LAST_NS - starts)
        ends[0] = max(int(ends[0]), self._last_unix_ns)
        ends = np.maximum.accumulate(ends)
        self._last_unix_ns = int(ends[-1])
        return ends


def _blocks(segments: Sequence[Path], unreadable: list[Path]) -> Iterator[Rows]:
    for path in segments:
        try:
            yield from Segment(path).read()
        except (InputError, OSError):
            unreadable.append(path)


KEPT_BYTES: Final = 256 * 1024
"""Size of a segment in the copy. The copy keeps only the last two segments of a stream: followers have read the older ones."""

_AT_START: Final[dict[str, Any]] = {
    "end_unix_ns": None,
    "end_reason": None,
    "dropped_records": 0,
    "unconfirmed_records": 0,
    "missed_windows": 0,
    "recorder_cost_us": None,
    "window_cost_us": None,
    "windows": 0,
    "disabled_reason": None,
}
"""Initial values of the fields in ``rank.json`` that a rank fills in when it ends."""


class _EndRecord(msgspec.Struct):
    end_unix_ns: int


class _WindowTimes(msgspec.Struct):
    start_unix_ns: int
    window_us: float


class _SampleTime(msgspec.Struct):
    unix_ns: int


_OF_RANKS: Final[tuple[RankStream, ...]] = ("events", "steps", "windows", "collectives", "stacks", "durations")
_ALL: Final = 1 << 80
"""Nanoseconds later than the time of any record."""
_LONGEST_US: Final = 1e18
"""Longest duration of a record; a larger value is damage."""
_LAST_NS: Final = 2**62
"""No clock shows a later time, in unix nanoseconds."""


def _end_ns(start_unix_ns: int, us: float) -> int:
    return start_unix_ns + int(max(-_LONGEST_US, min(us, _LONGEST_US)) * 1000)


_KINDS: Final[dict[Stream, tuple[type[Any], Any]]] = {
    **dict.fromkeys(("events", "collectives", "stacks", "durations"), (_EndRecord, lambda record: record.end_unix_ns)),
    "windows": (_WindowTimes, lambda record: _end_ns(record.start_unix_ns, record.window_us)),
    "gpu": (_SampleTime, lambda record: record.unix_ns),
}
"""Type and end time of a record, by stream. Kernels have no time and only add advice, so they are left out."""


class GrowingRun:
    """Copy of ``run`` that grows in the empty ``folder``.

    ``latest_unix_ns`` limits all times, because a damaged record may have a later one. Raises ``RankscopeError`` when ``run``
    cannot be read, and ``OSError``.
    """

    def __init__(self, run: Path, folder: Path, *, latest_unix_ns: int) -> None:
        reader = RunReader(run)
        # The space forces quotes in commands: a replay replaces quoted and plain paths separately.
        self.path = folder / "growing run" / run.resolve().name
        self.unreadable: list[Path] = []
        """Files and folders that could not be read so far."""
        self.info = reader.info
        self._latest_unix_ns = latest_unix_ns
        self._files: deque[tuple[int, Path, msgspec.Struct]] = deque()
        self._copies: list[_Copy] = []
        create_run(self.path, reader.info)
        for attempt in reader.attempts():
            self._add_attempt(reader, attempt)
        for host in reader.hosts():
            self._add(host_dir(reader.path, host), host_dir(self.path, host), "gpu")
        self._files = deque(sorted(self._files, key=lambda file: file[0]))
        self.end_unix_ns = self._files[-1][0] if self._files else self.info.start_unix_ns
        """Time of the last recorded start or end of an attempt or a rank."""

    @property
    def next_unix_ns(self) -> int | None:
        """Time at which the copy grows next; ``None`` when it is complete."""
        moments = [copy.records.next_unix_ns for copy in self._copies]
        if self._files:
            moments.append(self._files[0][0])
        times = [moment for moment in moments if moment is not None]
        return min(*times, self._latest_unix_ns) if times else None

    def advance(self, unix_ns: int) -> None:
        """Grow the copy to the state of the run at ``unix_ns``. Raises ``OSError``."""
        until = unix_ns if unix_ns < self._latest_unix_ns else _ALL
        while self._files and self._files[0][0] <= until:
            _, path, record = self._files.popleft()
            write_record(path, record)
        for copy in self._copies:
            copy.advance(until)

    def _add_attempt(self, reader: RunReader, attempt: int) -> None:
        about = reader.attempt(attempt)
        began = self.info.start_unix_ns if about is None else about.start_unix_ns
        if about is not None:
            self._files.append((began, attempt_file(self.path, attempt), about))
        for rank in reader.ranks(attempt):
            folder = rank_dir(self.path, attempt, rank)
            info = reader.rank(attempt, rank)
            if info is not None:
                at_start = msgspec.structs.replace(info, **_AT_START)
                self._files.append((info.start_unix_ns, folder / "rank.json", at_start))
                if info.end_unix_ns is not None:
                    self._files.append((max(info.start_unix_ns, info.end_unix_ns), folder / "rank.json", info))
            for stream in _OF_RANKS:
                self._add(rank_dir(reader.path, attempt, rank), folder, stream, header(rank, attempt))

    def _add(self, source: Path, folder: Path, stream: Stream, rows_header: bytes = b"") -> None:
        try:
            segments = list_segments(source, stream)
        except FileNotFoundError:
            return
        except OSError:
            self.unreadable.append(source)
            return
        if stream == "steps":
            rows = RowsInTime(segments, unreadable=self.unreadable)
            self._copies.append(_Copy(rows, folder, stream, rows_header))
        else:
            lines = LinesInTime(segments, *_KINDS[stream], unreadable=self.unreadable)
            self._copies.append(_Copy(lines, folder, stream))


@dataclass(slots=True)
class _Copy:
    """A stream and its destination."""

    records: LinesInTime[Any] | RowsInTime
    folder: Path
    stream: Stream
    header: bytes = b""
    number: int = 0
    size: int = 0

    def advance(self, unix_ns: int) -> None:
        data = self.records.until(unix_ns)
        if not data:
            return
        if self.size >= KEPT_BYTES:
            segment(self.folder, self.stream, self.number - 1).unlink(missing_ok=True)
            self.number, self.size = self.number + 1, 0
        if not self.size:
            data = self.header + data
        make_folder(self.folder)
        append_whole(segment(self.folder, self.stream, self.number), data)
        self.size += len(data)
