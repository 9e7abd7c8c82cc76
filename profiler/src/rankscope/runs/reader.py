"""Reading a run directory, finished, live or damaged.

A torn last line, an unknown field or a missing file is no error. Unusable lines are counted, unreadable files are recorded, and
the rest is read. ``InputError`` is raised for a folder that is no run, has an unsupported format or cannot be listed. Run
directories are untrusted: no file in one can block the reader or make it use more memory than there is on disk.
"""

from __future__ import annotations

import copy
import errno
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

import msgspec

from rankscope.base.errors import InputError
from rankscope.base.formats import unread_format
from rankscope.runs.durations import DurationBlock
from rankscope.runs.paths import (
    Stream,
    activity_file,
    attempt_dir,
    attempt_file,
    host_dir,
    rank_dir,
    rank_file,
    ranks_dir,
    run_file,
)
from rankscope.runs.records import (
    RUN_SCHEMA,
    AttemptInfo,
    CollectiveRecord,
    HardwareSample,
    KernelRecord,
    PlannedWindow,
    RankActivity,
    RankInfo,
    RunInfo,
    StackSamples,
    StepBreakdown,
    StepEvent,
    StepRecord,
)
from rankscope.runs.run_files import list_run_folder, open_run_file, real_run
from rankscope.runs.segments import UNDECODABLE, Skipped, add_skipped, decode_blocks, list_segments, read_blocks, skip_lines

if TYPE_CHECKING:
    from rankscope.runs.step_segments import Rows

ATTEMPTS: Final = "attempts"
MAX_INFO_BYTES: Final = 16 * 2**20
"""Maximum size of a ``run.json``, ``attempt.json`` or ``rank.json``; typical ones have a few thousand bytes."""
_STACK_SEGMENTS: Final = 2
"""Number of last segments of stack samples that are read: weeks of them by default."""
_SHOWN_FILES: Final = 3
"""Number of damaged files in a message."""
MAX_NUMBER: Final = 2**31
"""Exclusive bound of attempt and rank numbers: a folder with a larger number is damage."""

_T = TypeVar("_T", bound=msgspec.Struct)


def is_run(path: Path) -> bool:
    """Return whether ``path`` looks like a run directory (it has a ``run.json``)."""
    return run_file(path).is_file()


def is_visible_run(folder: Path) -> bool:
    """Return whether ``folder`` is a run that this process may read: listings skip the others without an error."""
    try:
        return is_run(folder)
    except OSError:
        return False


def is_headless_run(path: Path) -> bool:
    """Return whether ``path`` looks like a run directory that has lost its ``run.json``: it has attempts."""
    return (path / ATTEMPTS).is_dir() and not is_run(path)


class RunReader:
    """Reader of one run directory.

    ``skipped`` has the files with lines and rows that could not be used (torn, malformed, too long) since the reader was made.
    ``unusable`` lists, once each, the files and folders that could not be read. ``links``: the path of the run may have links.
    """

    def __init__(self, path: Path, *, links: bool = True) -> None:
        self.path = real_run(path, links=links)
        self.skipped: Skipped = {}
        self.unusable: list[Path] = []
        self.info = self._read_info()

    @property
    def skipped_lines(self) -> int:
        """Number of ``skipped`` lines and rows."""
        return sum(count for count, _ in self.skipped.values())

    def damage(self) -> str:
        """Return where the ``skipped`` lines and rows are: "attempts/…/windows-000000.jsonl (2, from byte 812 on)"."""
        shown = [
            f"{path.relative_to(self.path)} ({count}, {f'from byte {at} on' if count > 1 else f'at byte {at}'})"
            for path, (count, at) in sorted(self.skipped.items())[:_SHOWN_FILES]
        ]
        more = len(self.skipped) - len(shown)
        return ", ".join(shown) + (f" and in {more} more {'files' if more > 1 else 'file'}" if more else "")

    def _read_info(self) -> RunInfo:
        file = run_file(self.path)
        if not file.is_file():
            if not self.path.exists():
                raise InputError(self.path, "no such file or folder")
            if file.exists():
                raise InputError(file, "not a regular file")
            if is_headless_run(self.path):
                raise InputError(
                    self.path, "looks like a run directory, for there are attempts in it, but its run.json is missing"
                )
            raise InputError(self.path, "not a run directory: there is no run.json in it")
        data = _read_bytes(file)
        try:
            head = msgspec.json.decode(data, type=dict[str, object])
        except msgspec.ValidationError as error:
            raise InputError(file, f"not a rankscope run: {error}") from error
        except UNDECODABLE as error:
            raise InputError(file, f"not JSON: {error}") from error
        schema = str(head.get("schema"))
        if schema.partition("/")[0] != RUN_SCHEMA.partition("/")[0]:
            raise InputError(file, f"not a rankscope run: schema is {schema!r}")
        if schema != RUN_SCHEMA:
            raise InputError(file, unread_format(schema, RUN_SCHEMA))
        return _decode_file(file, data, RunInfo)

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that left a folder, ascending."""
        return self._numbered(self.path / ATTEMPTS, digits=3)

    def attempt(self, attempt: int) -> AttemptInfo | None:
        """Read ``attempt.json``; ``None`` where it is missing or unreadable (a rank died while starting)."""
        return self._optional(attempt_file(self.path, attempt), AttemptInfo)

    def ranks(self, attempt: int) -> list[int]:
        """Return the ranks that left a folder in this attempt, ascending."""
        return self._numbered(ranks_dir(self.path, attempt), digits=5)

    def rank(self, attempt: int, rank: int) -> RankInfo | None:
        """Read ``rank.json``; ``None`` where it is missing or unreadable."""
        return self._optional(rank_file(self.path, attempt, rank), RankInfo)

    def activity(self, attempt: int, rank: int) -> RankActivity | None:
        """Read ``activity.json``; ``None`` where it is missing or unreadable."""
        return self._optional(activity_file(self.path, attempt, rank), RankActivity)

    def infos(self, attempt: int) -> dict[int, RankInfo]:
        """Read ``rank.json`` of every rank that has a readable one, in the order of the ranks."""
        return {rank: info for rank in self.ranks(attempt) if (info := self.rank(attempt, rank)) is not None}

    def steps(self, attempt: int, rank: int) -> Iterator[StepRecord]:
        """Yield the step records of one rank in the order of writing, as objects; ``step_rows`` is many times as fast."""
        from rankscope.runs.step_columns import records_of

        # The rows first: a step's event is written before its row.
        blocks = list(self.step_rows(attempt, rank))
        events = {event.step: event for event in self.events(attempt, rank)}
        for rows in blocks:
            yield from records_of(rows, events)

    def step_rows(self, attempt: int, rank: int, *, last: int | None = None) -> Iterator[Rows]:
        """Yield the step records of one rank in the order of writing, as arrays of ``step_columns.row_dtype``, many at a time.

        ``last``: number of records at the end that are read; ``None``: all.
        """
        from rankscope.runs.step_segments import Segment

        segments = [Segment(path) for path in self._list(rank_dir(self.path, attempt, rank), "steps")]
        if last is not None:
            for segment in reversed(segments):
                with suppress(InputError, OSError):  # reported when it is read
                    last = segment.skip(keep=last)
        for segment in segments:
            try:
                yield from segment.read()
            except FileNotFoundError:
                continue  # retention removed it since
            except (InputError, OSError):
                self._cannot_use(segment.path)
            self.take_over(segment.skipped)

    def step_count(self, attempt: int, rank: int) -> int:
        """Return the number of rows of one rank, also damaged ones; those of segments that cannot be read do not count."""
        from rankscope.runs.step_segments import Segment

        count = 0
        for path in self._list(rank_dir(self.path, attempt, rank), "steps"):
            segment = Segment(path)
            with suppress(InputError, OSError):  # reported when it is read
                segment.skip()
            count += segment.rows_read
        return count

    def events(self, attempt: int, rank: int) -> Iterator[StepEvent]:
        """Yield the tags and sections of the steps of one rank that have any."""
        return self._rank_rows(attempt, rank, "events", StepEvent)

    def windows(self, attempt: int, rank: int) -> Iterator[StepBreakdown]:
        """Yield the breakdowns of the profiled steps of one rank."""
        return self._rank_rows(attempt, rank, "windows", StepBreakdown)

    def collectives(self, attempt: int, rank: int) -> Iterator[CollectiveRecord]:
        """Yield the collectives of the profiled steps of one rank."""
        return self._rank_rows(attempt, rank, "collectives", CollectiveRecord)

    def kernels(self, attempt: int, rank: int) -> Iterator[KernelRecord]:
        """Yield the costliest kernels of the profiled steps of one rank."""
        return self._rank_rows(attempt, rank, "kernels", KernelRecord)

    def stacks(self, attempt: int, rank: int) -> Iterator[StackSamples]:
        """Yield the samples of the stack of one rank, of a very long run only the last ones."""
        return self._rank_rows(attempt, rank, "stacks", StackSamples, last=_STACK_SEGMENTS)

    def durations(self, attempt: int, rank: int) -> Iterator[DurationBlock]:
        """Yield the durations of the collectives of one rank."""
        return self._rank_rows(attempt, rank, "durations", DurationBlock)

    def plan(self, attempt: int) -> Iterator[PlannedWindow]:
        """Yield the windows that were announced to the ranks of this attempt."""
        return self._rows(attempt_dir(self.path, attempt), "plan", PlannedWindow)

    def hosts(self) -> list[str]:
        """Return the names of the hosts that left hardware samples."""
        folder = self.path / "hosts"
        try:
            return sorted(name for name in list_run_folder(folder) if (folder / name).is_dir())
        except FileNotFoundError:
            return []
        except OSError:
            self._cannot_use(folder)
            return []

    def hardware(self, host: str, since_ns: int = 0) -> Iterator[HardwareSample]:
        """Yield the samples of the GPUs of one host, in the order they were taken, without many of those before ``since_ns``."""
        return self._rows(host_dir(self.path, host), "gpu", HardwareSample, since_ns=since_ns)

    def gpu_memory(self, host: str) -> Iterator[GpuMemory]:
        """Yield the part of each of the samples of one host that says how much memory a GPU has."""
        return self._rows(host_dir(self.path, host), "gpu", GpuMemory)

    def quiet(self) -> RunReader:
        """Return a reader of the same run with counts of its own."""
        reader = copy.copy(self)
        reader.skipped, reader.unusable = {}, []
        return reader

    def take_over(self, skipped: Skipped, unusable: Sequence[Path] = ()) -> None:
        """Add the skipped lines and unusable files of another reader of this run."""
        for path, (count, first) in skipped.items():
            before, first_place = self.skipped.get(path, (0, first))
            self.skipped[path] = before + count, first_place
        for path in unusable:
            self._cannot_use(path)

    def _rank_rows(self, attempt: int, rank: int, stream: Stream, kind: type[_T], *, last: int = 0) -> Iterator[_T]:
        return self._rows(rank_dir(self.path, attempt, rank), stream, kind, last=last)

    def _rows(self, folder: Path, stream: Stream, kind: type[_T], *, last: int = 0, since_ns: int = 0) -> Iterator[_T]:
        """Yield the records of one stream of JSON Lines.

        ``last``: those of its last segments only (0: all). ``since_ns``: without many of the records before this time.
        """
        return chain.from_iterable(self._blocks(folder, stream, kind, last, since_ns))

    def _blocks(self, folder: Path, stream: Stream, kind: type[_T], last: int, since_ns: int) -> Iterator[list[_T]]:
        decoder = msgspec.json.Decoder(kind)
        for path in self._list(folder, stream)[-last:]:
            try:
                with open_run_file(path) as file:
                    begin = skip_lines(file, lambda line: _time_of(line) < since_ns) if since_ns else 0
                    for records, damaged in decode_blocks(read_blocks(file), decoder, begin):
                        add_skipped(self.skipped, path, damaged)
                        yield records
            except FileNotFoundError:
                continue  # retention removed it since
            except OSError:
                self._cannot_use(path)

    def _list(self, folder: Path, stream: Stream) -> list[Path]:
        try:
            return list_segments(folder, stream)
        except FileNotFoundError:
            if folder.is_symlink():
                self._cannot_use(folder)
        except OSError:
            self._cannot_use(folder)
        return []

    def _optional(self, path: Path, kind: type[_T]) -> _T | None:
        try:
            with open_run_file(path) as file:
                return msgspec.json.decode(_all_of(file), type=kind)
        except FileNotFoundError:
            return None  # not written yet
        except (OSError, *UNDECODABLE):
            self._cannot_use(path)
            return None

    def _numbered(self, folder: Path, *, digits: int) -> list[int]:
        numbers: list[int] = []
        try:
            for name in list_run_folder(folder):
                if not name.isdecimal():
                    continue
                number = int(name)
                if number < MAX_NUMBER and name == f"{number:0{digits}d}":
                    numbers.append(number)
                else:
                    self._cannot_use(folder / name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(folder, error.strerror or str(error)) from error
        return sorted(numbers)

    def _cannot_use(self, path: Path) -> None:
        if path not in self.unusable:
            self.unusable.append(path)


class GpuMemory(msgspec.Struct):
    """Memory of a GPU: two fields of a ``HardwareSample``, which are decoded many times as fast as all."""

    gpu_uuid: str | None = None
    memory_total_bytes: int | None = None


class _Timed(msgspec.Struct):
    unix_ns: int


_timed: Final = msgspec.json.Decoder(_Timed)


def _time_of(line: bytes) -> float:
    """Return the time of a record in Unix nanoseconds; infinite where it cannot be read."""
    try:
        return _timed.decode(line).unix_ns
    except UNDECODABLE:
        return math.inf


def _read_bytes(path: Path) -> bytes:
    try:
        with open_run_file(path) as file:
            return _all_of(file)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


def _all_of(file: BinaryIO) -> bytes:
    """Return the whole file. Raises ``OSError`` if it has more than ``MAX_INFO_BYTES``: the file is untrusted."""
    # Python allocates the requested size at once, so request no more than the file has.
    data = file.read(min(os.fstat(file.fileno()).st_size, MAX_INFO_BYTES) + 1)
    if len(data) > MAX_INFO_BYTES:
        raise OSError(errno.EFBIG, "damaged: far too large for what it is")
    return data


def _decode_file(path: Path, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise InputError(path, str(error)) from error
